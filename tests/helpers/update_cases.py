"""Kernels of update rules on operands of some shape, with the operands whose memory their results take."""

from __future__ import annotations

from tvm import te

from autotm.lower.update_formulas import UpdateFactors, count, formula_of
from autotm.lower.updates import add_squares
from autotm.model.training import AdamW, Sgd, UpdateRule

Kernel = tuple[list[te.Tensor], dict[int, int]]
"""Operands, then results; slot of a result -> slot of the operand whose memory it takes."""


def update(rule: UpdateRule, shape: tuple[int, ...]) -> Kernel:
    """One parameter's update, clipped."""
    formula = formula_of(rule)
    old, slope, *states = (te.placeholder(shape, "float32") for _ in range(2 + len(formula.states)))
    numbers = [te.placeholder((), "float32") for _ in range(1 + formula.factor_count)]
    given = UpdateFactors(tuple(number() for number in numbers[1:]), numbers[0]())
    operands = [old, slope, *states, *numbers]
    replaced = [*range(2, 2 + len(states)), 0]
    results = formula.update(old, slope, states, given)
    return [*operands, *results], {len(operands) + place: slot for place, slot in enumerate(replaced)}


def counter() -> Kernel:
    """The counter of two rules."""
    before = te.placeholder((), "int64")
    rules = [AdamW(1e-3), Sgd(0.1, momentum=0.9, dampening=0.5)]
    results = count(before, [formula_of(rule) for rule in rules])
    return [before, *results], {1: 0}


def squares(*shapes: tuple[int, int]) -> Kernel:
    """The squares of some matrices, added to a sum."""
    gradients, before = [te.placeholder(shape, "float32") for shape in shapes], te.placeholder((), "float64")
    return [*gradients, before, add_squares(gradients, [before])], {}
