"""A network read from elsewhere, made ours: channels last, weights as kernels want them, constants as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import tvm

from autotm.zoo.frontend.layout_rules import RULES
from autotm.zoo.frontend.layouts import CONSTANT, Layouts, Order
from autotm.zoo.network import Check, Fill, unchecked

__all__ = ["CONSTANT", "Imported", "channels_last"]


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
