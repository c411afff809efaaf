"""The updates of all parameters, appended to a step: what they keep, the kernels, and in which order these come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import relax, te

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import Lookup, call_embedding_update
from autotm.lower.updates.clip import clipping
from autotm.lower.updates.counter import counter
from autotm.lower.updates.formulas import TOGETHER, Formula, Given, bind, formula_of, is_vector
from autotm.lower.updates.lookups import lookups_of, together
from autotm.model.step import Sgd, Training, UpdateRule

_FUSING = {"op_pattern": 0}
"""Attributes of an update that may join the kernel of its gradient."""

Binding = relax.VarBinding


@dataclass(frozen=True)
class Updates:
    """A training step to its end.

    Attributes:
        bindings: of the whole step.
        new: the new value of each parameter and each state, by the old one.
        states: what the update rules keep: further arguments of the step, zero before the first.
        rate_scale: what learning rates are multiplied by, a further input; None where they are fixed.
    """

    bindings: list[Binding]
    new: Mapping[relax.Var, relax.Var]
    states: list[relax.Var]
    rate_scale: relax.Var | None = None

    @property
    def arguments(self) -> list[relax.Var]:
        """What the step takes besides: states, and the scale of the rates."""
        return self.states + ([] if self.rate_scale is None else [self.rate_scale])


@dataclass(frozen=True)
class _Trained:
    """A parameter with its gradient, its rule, and what that keeps."""

    old: relax.Var
    slope: relax.Expr
    rule: UpdateRule
    formula: Formula
    states: tuple[relax.Var, ...]

    @classmethod
    def of(cls, old: relax.Var, slope: relax.Expr, training: Training) -> _Trained:
        rule = training.rule_of(old.name)
        formula = formula_of(rule, scheduled=training.scheduled)
        states = tuple(relax.Var(f"{old.name}.{state}", old.ty) for state in formula.states)
        return cls(old, slope, rule, formula, states)

    @property
    def replaced(self) -> tuple[relax.Var, ...]:
        """In the order in which the formula has the new values."""
        return (*self.states, self.old)


def append_updates(
    builder: relax.BlockBuilder,
    parameters: Sequence[relax.Var],
    gradients: Sequence[relax.Expr],
    training: Training,
    bindings: Sequence[Binding],
) -> Updates:
    """The bindings of a step, and behind them those that update its parameters.

    Of a table that is only looked up in, the rows that were are updated in place, if the rule takes nothing but the
    gradient off. A matrix's update is written so that it fuses with the kernel of its gradient; clipped gradients must
    wait for all others. Vectors are updated in groups of neighbours, last first: their gradients are ready at about the
    same time of the backward pass.

    Args:
        builder: of the module that the update kernels are put into.
        parameters: as the step receives them.
        gradients: of each.
        training: the rules.
        bindings: of the step so far.
    """
    trained = [_Trained.of(old, slope, training) for old, slope in zip(parameters, gradients, strict=True)]
    new = {old: relax.Var(f"{old.name}_new", old.ty) for item in trained for old in item.replaced}
    states = [state for item in trained for state in item.states]
    every, shared, rate_scale = list(bindings), _Shared(fixed_rates=not training.scheduled), None
    if training.clip_norm is not None and trained:
        clip = clipping(builder, bindings, gradients, training.clip_norm)
        every, shared = clip.bindings, replace(shared, clip=clip.coefficient)
    counted = {item.rule: item.formula for item in trained if item.formula.factor_count}
    if counted:
        count = counter(builder, list(counted.values()), scheduled=training.scheduled)
        every += count.bindings
        shared = replace(shared, factors=dict(zip(counted, count.factors, strict=True)))
        new[count.old] = count.new
        states.append(count.old)
        rate_scale = count.rate_scale
    bound = {binding.var: binding.value for binding in bindings}
    return Updates(every + _kernels(builder, trained, shared, new, bound), new, states, rate_scale)


def _kernels(
    builder: relax.BlockBuilder,
    trained: Sequence[_Trained],
    shared: _Shared,
    new: Mapping[relax.Var, relax.Var],
    bound: Mapping[relax.Var, relax.Expr],
) -> list[Binding]:
    """The updates alone."""
    every: list[Binding] = []
    tables: dict[float, list[list[Lookup]]] = defaultdict(list)
    vectors = []
    for item in trained:
        is_plain = isinstance(item.rule, Sgd) and item.rule.is_plain and shared.clip is None and shared.fixed_rates
        if is_plain and (lookups := lookups_of(item.old, item.slope, bound)):
            tables[item.rule.learning_rate].append(lookups)
        elif is_vector(item.old):
            vectors.append(item)
        elif is_plain:
            every += _plain(item.old, item.slope, item.rule.learning_rate, new)
        else:
            every += _updated(builder, [item], shared, new, _FUSING)
    for rate, lookups in tables.items():
        for group in together(lookups):
            every += _rows(builder, group, new, rate)
    vectors.reverse()
    for start in range(0, len(vectors), TOGETHER):
        every += _updated(builder, vectors[start : start + TOGETHER], shared, new, OPAQUE)
    return every


@dataclass(frozen=True)
class _Shared:
    """What updates read besides their own: what gradients are multiplied by, and the factors of each rule."""

    fixed_rates: bool
    clip: relax.Var | None = None
    factors: Mapping[UpdateRule, tuple[relax.Var, ...]] = field(default_factory=dict)


def _plain(old: relax.Var, slope: relax.Expr, rate: float, new: Mapping[relax.Var, relax.Var]) -> list[Binding]:
    change = relax.DataflowVar(f"{old.name}_change", old.ty)
    return [
        Binding(change, relax.op.multiply(slope, relax.const(rate, "float32"))),
        Binding(new[old], relax.op.subtract(old, change)),
    ]


def _rows(
    builder: relax.BlockBuilder, lookups: list[Lookup], new: Mapping[relax.Var, relax.Var], rate: float
) -> list[Binding]:
    """One kernel that updates the looked-up rows of some tables."""
    tables = list(dict.fromkeys(lookup.table for lookup in lookups))
    return bind(call_embedding_update(builder, lookups, rate), [new[table] for table in tables])


def _updated(
    builder: relax.BlockBuilder,
    group: Sequence[_Trained],
    shared: _Shared,
    new: Mapping[relax.Var, relax.Var],
    attributes: Mapping[str, int],
) -> list[Binding]:
    """One kernel that updates some parameters and what their rules keep."""
    rules = list(dict.fromkeys(item.rule for item in group))

    def kernel(
        olds: list[te.Tensor],
        slopes: list[te.Tensor],
        states: list[list[te.Tensor]],
        clip: list[te.Tensor],
        factors: list[list[te.Tensor]],
    ) -> list[te.Tensor]:
        found = []
        for item, old, slope, kept in zip(group, olds, slopes, states, strict=True):
            own = tuple(factor() for factor in factors[rules.index(item.rule)])
            found += item.formula.update(old, slope, kept, Given(own, clip[0]() if clip else None))
        return found

    call = builder.call_te(
        kernel,
        [item.old for item in group],
        [item.slope for item in group],
        [list(item.states) for item in group],
        [] if shared.clip is None else [shared.clip],
        [list(shared.factors.get(rule, ())) for rule in rules],
        primfunc_name_hint=f"{group[0].formula.name}s" if len(group) > 1 else group[0].formula.name,
        primfunc_attrs=dict(attributes),
    )
    return bind(call, [new[old] for item in group for old in item.replaced])
