"""A builder that remembers where operators came from, so that later faults can name the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax


class LinedBuilder(relax.BlockBuilder):
    """Remembers the place in the source that each kind of operator came from first.

    Attributes:
        lines: places by name of the operator.
        place: tells the place that is being imported.
    """

    lines: dict[str, str]
    place: Callable[[], str] | None

    @classmethod
    def empty(cls) -> LinedBuilder:
        """A builder that has seen nothing."""
        found = cls()
        found.lines, found.place = {}, None
        return found

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable."""
        if self.place is not None:
            self._note(expr, self.place)
        return super().emit(expr, name_hint)

    def _exit_function_scope(self, kind: Any, error: Any, trace: Any) -> None:
        super()._exit_function_scope(kind, error, trace)
        if kind is not None:
            self._end_block()  # Of a block that is left open TVM warns on the terminal.

    def _note(self, expression: relax.Expr, place: Callable[[], str]) -> None:
        """Operators of an expression that are seen for the first time, also those within others."""
        if isinstance(expression, relax.Call):
            if isinstance(expression.op, tvm.ir.Op) and expression.op.name not in self.lines:
                self.lines[expression.op.name] = place()
            for argument in expression.args:
                self._note(argument, place)
        elif isinstance(expression, relax.Tuple):
            for field in expression.fields:
                self._note(field, place)
