"""A step as it was imported from PyTorch or ONNX: its operators' places in the source, and channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autotm.zoo.layouts import Layouts, Order
from autotm.zoo.network import Array, Check, Fill

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
        """Return a builder without operators."""
        builder = cls()
        builder.lines, builder.place = {}, None
        return builder

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable."""
        if self.place is not None:
            relax.analysis.post_order_visit(expr, self._note)
        return super().emit(expr, name_hint)

    def _exit_function_scope(self, kind: Any, error: Any, trace: Any) -> None:
        super()._exit_function_scope(kind, error, trace)
        if kind is not None:
            self._end_block()  # TVM warns on the terminal of a block that is left open.

    def _note(self, part: relax.Expr) -> None:
        """Remember the operator of a call that is seen for the first time."""
        if isinstance(part, relax.Call) and isinstance(part.op, tvm.ir.Op) and part.op.name not in self.lines:
            self.lines[part.op.name] = self.place()


# The imported step, with channels last as the kernels want them, and constants as arguments.


@dataclass(frozen=True)
class Imported:
    """A step in Relax, and the values of its arguments.

    Attributes:
        module: `main(arguments) -> (loss or outputs, new states)`.
        inputs, parameters, states: values by name of the argument, or how they are drawn.
        turned: arguments whose axes lie in another order than in their source: axis j here is axis
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
    check: Check = lambda _: None
    gradients: tuple[str, ...] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, tuple[int, bool]] = field(default_factory=dict)


def channels_last(imported: Imported) -> Imported:
    """Rewrite a step with channels last. An argument that is read in one order only is stored in that order."""
    first = Layouts({})
    first.rewrite(imported.module, imported.gradients or ())
    turned = {name: next(iter(orders)) for name, orders in first.asked.items() if len(orders) == 1}
    turned = {name: order for name, order in turned.items() if order != tuple(range(len(order)))}
    second = Layouts(turned)
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


# Whether an operator computes here what its source computes on the same operands.

NOISE = 1e-6
"""Relative noise on an operator's operands, some roundings of float32: shows what a sum in another order may give."""
_ALLOWED, _ROUNDING = 10.0, 1e-4
"""Allowed error of an operator: this many times the source's rounding error, and this part of the largest value."""


def difference(ours: Array, exact: Array, rounded: Sequence[Array], source: str) -> str:
    """Describe how an operator's result differs by more than roundings; return an empty text where it does not.

    Args:
        ours: the result here.
        exact: the source's result, in its most precise type.
        rounded: the source's results in float32 or on operands with noise.
        source: name of the source.
    """
    ours = ours.reshape(exact.shape)
    if exact.dtype.kind != "f":
        wrong = ours != exact
    else:
        with np.errstate(all="ignore"):
            size = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
            errors = (np.nan_to_num(np.abs(other - exact), nan=0.0, posinf=0.0) for other in rounded)
            error = max(each.max(initial=0.0) for each in errors)
            close = np.abs(ours - exact) <= _ALLOWED * error + _ROUNDING * size
            wrong = ~(close | (ours == exact) | (np.isnan(ours) & np.isnan(exact)))
    if not wrong.any():
        return ""
    place, count = tuple(np.argwhere(wrong)[0]), int(wrong.sum())
    actual, expected = ours[place].item(), exact[place].item()
    return f"{actual:.6g} where {source} has {expected:.6g}, and {count} of {wrong.size} numbers so"
