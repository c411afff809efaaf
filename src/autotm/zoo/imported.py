"""What is imported from PyTorch or ONNX: with the places that operators come from, turned to channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autotm.zoo.layout_rules import RULES
from autotm.zoo.layouts import Layouts, Order
from autotm.zoo.network import Check, Fill, unchecked

# A builder that remembers where operators came from, so that later faults can name the place.


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


# A network read from elsewhere, made ours: channels last, weights as kernels want them, constants as arguments.


@dataclass(frozen=True)
class Imported:
    """A step in Relax, and the values of its arguments.

    Attributes:
        module: `main(arguments) -> (loss or outputs, new states)`.
        inputs, parameters, states: values by name of the argument, or how they are drawn.
        turned: arguments whose axes lie in another order than in their source: axis j of ours is axis
            `turned[name][j]` there.
        lines: where in its source an operator is first used, by name of the operator.
        gradients: parameters whose gradients `main` returns, behind the new states; None where it returns none.
        check: checks the values of integer inputs, as `Origin.check`.
        counters: as `Origin.counters`.
        places: where the source draws random numbers, by its own name of the operator: the number of that place, and
            whether they are drawn here, not by PyTorch.
    """

    module: tvm.IRModule
    inputs: Mapping[str, Fill]
    parameters: Mapping[str, Fill]
    states: Mapping[str, Fill]
    turned: Mapping[str, Order] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    check: Check = unchecked
    gradients: tuple[str, ...] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, tuple[int, bool]] = field(default_factory=dict)


def channels_last(imported: Imported) -> Imported:
    """The same step with channels last. An argument that is only read turned is kept turned, and costs no kernel."""
    first = Layouts(RULES, {})
    first.rewrite(imported.module, imported.gradients or ())
    turned = {name: next(iter(orders)) for name, orders in first.asked.items() if len(orders) == 1}
    turned = {name: order for name, order in turned.items() if order != tuple(range(len(order)))}
    second = Layouts(RULES, turned)
    module = second.rewrite(imported.module, imported.gradients or ())

    def lying(values: Mapping[str, Fill]) -> dict[str, Fill]:
        return {
            name: np.ascontiguousarray(value.transpose(turned[name]))
            if name in turned and isinstance(value, np.ndarray)
            else value
            for name, value in values.items()
        }

    inputs = lying(imported.inputs) | second.constants
    return replace(imported, module=module, inputs=inputs, parameters=lying(imported.parameters), turned=turned)
