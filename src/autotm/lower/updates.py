"""The updates of all parameters, appended to a step: clipped, and row by row where a table is looked up in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import tvm
from tvm import relax, te, tirx

from autotm.kernels.tables import Lookup, call_embedding_update
from autotm.kernels.tir import OPAQUE
from autotm.lower.rules import ints, shape_of
from autotm.lower.update_formulas import TOGETHER, Formula, UpdateFactors, bind, counter, formula_of, is_vector
from autotm.model.training import Sgd, Training, UpdateRule

# Clipping by the norm over all gradients: the squares of each are added up as soon as it is there.

_RUN = 4096
"""Squares that are added in float32, the sums of such runs in float64: all in float32 would lose digits."""
_AWAY_FROM_ZERO = 1e-6
"""As PyTorch's `clip_grad_norm_` has it."""


@dataclass(frozen=True)
class Clipping:
    """What all gradients are multiplied by.

    Attributes:
        bindings: those of the step, and with them what computes the coefficient.
        coefficient: a float32 without axes, 1 at most.
    """

    bindings: list[Binding]
    coefficient: relax.Var


def clipping(
    builder: relax.BlockBuilder, bindings: Sequence[Binding], gradients: Sequence[relax.Expr], most: float
) -> Clipping:
    """Scale gradients so that their 2-norm together is `most` at most: min(1, most / (norm + 1e-6)).

    Each gradient is read right after it is computed, while caches have it.

    Args:
        builder: of the module that the kernels are put into.
        bindings: that compute the gradients.
        gradients: of all parameters.
        most: the largest norm.
    """
    made = {binding.var: index for index, binding in enumerate(bindings)}
    values = {binding.var: binding.value for binding in bindings}

    def source(gradient: relax.Expr) -> relax.Expr:
        while isinstance(values.get(gradient), relax.Var):
            gradient = values[gradient]
        return gradient

    def position(group: Sequence[relax.Expr]) -> int:
        return max(made.get(gradient, -1) for gradient in group)

    vectors = sorted((g for g in map(source, gradients) if is_vector(g)), key=lambda g: position([g]))
    groups = [[gradient] for gradient in map(source, gradients) if not is_vector(gradient)]
    groups += [vectors[start : start + TOGETHER] for start in range(0, len(vectors), TOGETHER)]
    groups.sort(key=position)
    later: dict[int, list[Binding]] = defaultdict(list)
    total: list[relax.Expr] = []
    for number, group in enumerate(groups):
        runs = [relax.op.reshape(gradient, _runs(gradient)) for gradient in group]
        views = [relax.DataflowVar("runs", relax.TensorType(_runs(gradient), "float32")) for gradient in group]
        more = relax.DataflowVar(f"squares{number}", relax.TensorType((), "float64"))
        call = builder.call_te(add_squares, views, total, primfunc_name_hint="square_sum", primfunc_attrs=OPAQUE)
        later[position(group)] += [*map(Binding, views, runs), Binding(more, call)]
        total = [more]
    coefficient = relax.DataflowVar("clip_coefficient", relax.TensorType((), "float32"))
    call = builder.call_te(_coefficient, *total, most, primfunc_name_hint="clip_coefficient", primfunc_attrs=OPAQUE)
    every = list(later[-1])
    for index, binding in enumerate(bindings):
        every += [binding, *later[index]]
    return Clipping([*every, Binding(coefficient, call)], coefficient)


def _runs(gradient: relax.Expr) -> tuple[int, int]:
    """The shape of a gradient as rows: the longest of at most `_RUN` elements that divide it."""
    size = prod(int(extent) for extent in gradient.ty.shape)
    length = next(length for length in range(min(size, _RUN), 0, -1) if size % length == 0)
    return size // length, length


def add_squares(gradients: list[te.Tensor], before: list[te.Tensor]) -> te.Tensor:
    """The squares of all elements of matrices, and what there was before (one sum or none), float64."""
    sums = [*map(_squares, gradients), *before]
    return te.compute((), lambda: sum((one() for one in sums[1:]), sums[0]()), name="square_total")


def _squares(gradient: te.Tensor) -> te.Tensor:
    rows, length = gradient.shape
    column, row = te.reduce_axis((0, length), "column"), te.reduce_axis((0, rows), "row")
    run = te.compute((rows,), lambda i: te.sum(gradient[i, column] * gradient[i, column], column), name="square_sum")
    return te.compute((), lambda: te.sum(run[row].astype("float64"), row), name="runs_sum")


def _coefficient(total: te.Tensor, most: float) -> te.Tensor:
    def value() -> tirx.Expr:
        one = tirx.const(1.0, "float64")
        share = tirx.const(most, "float64") / (tirx.sqrt(total()) + tirx.const(_AWAY_FROM_ZERO, "float64"))
        # In this order what is not a number stays that, as in PyTorch.
        return tirx.Select(share >= one, one, share).astype("float32")

    return te.compute((), value, name="clip_coefficient")


# Tables that are only looked up in: their gradient is never made, the looked-up rows are updated in place.

_TAKE_BACKWARD = "relax.grad.take_backward"


def lookups_of(table: relax.Var, gradient: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> list[Lookup] | None:
    """The lookups whose gradients `gradient` is the sum of, in order; None if it is of anything else too.

    Args:
        table: a parameter.
        gradient: of the whole table.
        bound: the value of every variable of the step.
    """
    value = _value(gradient, bound)
    if not isinstance(value, tvm.ir.Call):
        return None
    if value.op == tvm.ir.Op.get("relax.add"):
        parts = [lookups_of(table, argument, bound) for argument in value.args]
        return None if None in parts else [lookup for part in parts for lookup in part]
    if value.op != tvm.ir.Op.get(_TAKE_BACKWARD) or value.attrs.axis != 0 or len(shape_of(value)) != 2:  # noqa: PLR2004
        return None
    slope, _, indices = value.args
    return [Lookup(table, indices, *_columns(slope, bound))]


def together(lookups: Sequence[list[Lookup]]) -> list[list[Lookup]]:
    """The lookups of several tables, by table, put together where they read the same slope: one kernel for each list.

    A table with several lookups stays by itself, which keeps all of it in one kernel.
    """
    groups: dict[object, list[Lookup]] = {}
    for number, of_table in enumerate(lookups):
        key = of_table[0].slope if len(of_table) == 1 else number
        groups.setdefault(key, []).extend(of_table)
    return list(groups.values())


def _columns(slope: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Expr, int]:
    """Where a slope can be read: some columns of a wider matrix instead of their copy."""
    source = _value(slope, bound)
    is_slice = isinstance(source, tvm.ir.Call) and source.op == tvm.ir.Op.get("relax.strided_slice")
    if not is_slice or ints(source.args[1]) != (1,):
        return slope, 0
    wide, _, begin = source.args[:3]
    return (wide, ints(begin)[0]) if len(shape_of(wide)) == 2 else (slope, 0)  # noqa: PLR2004  (matrices)


def _value(expression: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    while isinstance(expression, relax.Var) and expression in bound:
        expression = bound[expression]
    return expression


# The updates of all parameters, appended to a step: what they keep, the kernels, and in which order these come.

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
            found += item.formula.update(old, slope, kept, UpdateFactors(own, clip[0]() if clip else None))
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
