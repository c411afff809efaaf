"""The update rules as formulas over elements, and the numbers of a step that these read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tvm import relax, te, tirx

from autotm.model.training import Adam, AdamW, Sgd, UpdateRule

TOGETHER = 6
"""Vectors (biases, scales, shifts) that one kernel updates: the update of one takes less time than a call."""

Binding = relax.VarBinding
Number = tirx.Expr
Element = Callable[[tuple[tirx.Var, ...]], Number]
"""An element of a tensor, by its place."""


class Formula(Protocol):
    """How one rule updates a parameter.

    Attributes:
        name: of the kernel.
        states: what is kept for each element from step to step, zero before the first.
        factor_count: how many numbers `factors` gives.
    """

    name: str
    states: tuple[str, ...]
    factor_count: int

    def factors(self, step: Number, rate_scale: Number) -> list[Number]:
        """Compute the numbers that are the same for all elements of a step, all in float64.

        The first `step` is 1; where rates are scheduled, `rate_scale` multiplies the learning rate.
        """

    def update(
        self, old: te.Tensor, slope: Element, states: Sequence[te.Tensor], factors: Sequence[Number]
    ) -> list[te.Tensor]:
        """Return the new states, then the new parameter, in an order in which they may take the old memory.

        `old` is the parameter, `slope` its gradient (clipped if gradients are), `factors` those of this step.
        """


def formula_of(rule: UpdateRule, *, scheduled: bool = False) -> Formula:
    """Return the formula of a rule; where it is `scheduled`, its learning rate is a number of each step."""
    return _SgdFormula(rule, scheduled) if isinstance(rule, Sgd) else _AdamFormula(rule, scheduled)


class _SgdFormula:
    name = "sgd_update"

    def __init__(self, rule: Sgd, scheduled: bool) -> None:
        self._rule, self._scheduled = rule, scheduled
        self._dampened = bool(rule.momentum and rule.dampening)
        self.states = ("momentum",) if rule.momentum else ()
        self.factor_count = self._dampened + scheduled

    def factors(self, step: Number, rate_scale: Number) -> list[Number]:
        """Return the gradient's share of the momentum, 1 in the first step, and the learning rate where it varies."""
        share = tirx.Select(step == _double(1.0), _double(1.0), _double(1.0 - self._rule.dampening))
        rate = [_double(self._rule.learning_rate) * rate_scale] if self._scheduled else []
        return [share, *rate] if self._dampened else rate

    def update(
        self, old: te.Tensor, slope: Element, states: Sequence[te.Tensor], factors: Sequence[Number]
    ) -> list[te.Tensor]:
        rule = self._rule
        rate = factors[-1] if self._scheduled else _float(rule.learning_rate)

        def change(at: tuple[tirx.Var, ...]) -> Number:
            return _decayed(slope(at), old(*at), rule.weight_decay)

        if not rule.momentum:
            return [elementwise(old.shape, lambda at: old(*at) - change(at) * rate, self.name)]
        (before,), share = states, factors[: self._dampened]

        def kept(at: tuple[tirx.Var, ...]) -> Number:
            return before(*at) * _float(rule.momentum) + (change(at) * share[0] if share else change(at))

        momentum = elementwise(old.shape, kept, "momentum")

        def stepped(at: tuple[tirx.Var, ...]) -> Number:
            kept_now = momentum(*at)
            ahead = change(at) + kept_now * _float(rule.momentum) if rule.nesterov else kept_now
            return old(*at) - ahead * rate

        return [momentum, elementwise(old.shape, stepped, self.name)]


class _AdamFormula:
    name = "adam_update"
    states = ("first_moment", "second_moment")

    def __init__(self, rule: Adam, scheduled: bool) -> None:
        self._rule, self._scheduled = rule, scheduled
        self._shrinks = isinstance(rule, AdamW) and rule.weight_decay != 0
        self.factor_count = 3 if scheduled and self._shrinks else 2

    def factors(self, step: Number, rate_scale: Number) -> list[Number]:
        """Return the step's length, the root of the second moment's correction, and a varying factor of decay."""
        one = _double(1.0)
        first, second = (one - tirx.pow(_double(beta), step) for beta in self._rule.betas)
        rate = _double(self._rule.learning_rate)
        if self._scheduled:
            rate *= rate_scale
        return [rate / first, tirx.sqrt(second), one - rate * _double(self._rule.weight_decay)][: self.factor_count]

    def update(
        self, old: te.Tensor, slope: Element, states: Sequence[te.Tensor], factors: Sequence[Number]
    ) -> list[te.Tensor]:
        rule, shape = self._rule, old.shape
        apart = isinstance(rule, AdamW)
        length, root, *kept_now = factors

        def change(at: tuple[tirx.Var, ...]) -> Number:
            return _decayed(slope(at), old(*at), 0.0 if apart else rule.weight_decay)

        def towards(before: te.Tensor, value: Element, beta: float, name: str) -> te.Tensor:
            # Not beta * before + (1 - beta) * value: rounded to float32, the two factors do not add up to one.
            def element(at: tuple[tirx.Var, ...]) -> Number:
                return before(*at) + (value(at) - before(*at)) * _float(1.0 - beta)

            return elementwise(shape, element, name)

        mean = towards(states[0], change, rule.betas[0], self.states[0])
        square = towards(states[1], lambda at: change(at) * change(at), rule.betas[1], self.states[1])
        kept = kept_now[0] if kept_now else _float(1.0 - rule.learning_rate * rule.weight_decay)

        def stepped(at: tuple[tirx.Var, ...]) -> Number:
            start = old(*at) * kept if self._shrinks else old(*at)
            return start - length * mean(*at) / (tirx.sqrt(square(*at)) / root + _float(rule.eps))

        return [mean, square, elementwise(shape, stepped, self.name)]


def is_vector(tensor: relax.Expr) -> bool:
    """Return whether a tensor is so small that several go into one kernel."""
    return len(tensor.ty.shape) <= 1


def bind(call: relax.Expr, results: list[relax.Var]) -> list[Binding]:
    """Name what a call returns: one tensor, or a tuple of them."""
    if len(results) == 1:
        return [Binding(results[0], call)]
    every = relax.DataflowVar("updates", relax.TupleType([result.ty for result in results]))
    parts = [Binding(result, relax.TupleGetItem(every, index)) for index, result in enumerate(results)]
    return [Binding(every, call), *parts]


def elementwise(shape: Sequence[int], element: Element, name: str) -> te.Tensor:
    """Compute a tensor of that shape, which may have no axes, element by element."""
    if len(shape) == 0:
        return te.compute((), lambda: element(()), name=name)
    return te.compute(shape, lambda *at: element(at), name=name)


def _decayed(slope: Number, old: Number, weight_decay: float) -> Number:
    return slope + old * _float(weight_decay) if weight_decay else slope


def _float(value: float) -> Number:
    return tirx.const(value, "float32")


def _double(value: float) -> Number:
    return tirx.const(value, "float64")


def count(before: te.Tensor, formulas: Sequence[Formula], rate_scale: te.Tensor | None = None) -> list[te.Tensor]:
    """Compute the number of the step after `before`, and the factors of all formulas in it, as float32."""
    scale = _double(1.0) if rate_scale is None else rate_scale()
    now = te.compute((), lambda: before() + tirx.const(1, "int64"), name="step")
    values = [value for formula in formulas for value in formula.factors(now().astype("float64"), scale)]
    return [now, *(elementwise((), lambda _, value=value: value.astype("float32"), "step_factor") for value in values)]
