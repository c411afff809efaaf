"""The updates of all parameters, appended to a step: clipped, and row by row where a table is looked up in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tvm import relax, te, tirx

from autotm.kernels.tables import Lookup, call_embedding_update
from autotm.kernels.tir import OPAQUE
from autotm.lower.rules import bound_value, ints, is_call, shape_of
from autotm.lower.update_formulas import TOGETHER, Formula, bind, count, formula_of, is_vector
from autotm.model.training import RATE_SCALE, STEP, Sgd, Training, UpdateRule

Binding = relax.VarBinding
_FUSING = {"op_pattern": 0}
"""Attributes of an update that may join the kernel of its gradient."""


@dataclass(frozen=True)
class Updates:
    """A complete training step.

    Attributes:
        bindings: of the whole step.
        new: the new value of each parameter and each state, by the old one.
        states: states of the update rules: further arguments of the step, zero before the first.
        rate_scale: factor of all learning rates, a further input, float64 without axes; None where rates are fixed.
    """

    bindings: list[Binding]
    new: Mapping[relax.Var, relax.Var]
    states: list[relax.Var]
    rate_scale: relax.Var | None

    @property
    def arguments(self) -> list[relax.Var]:
        """Further arguments of the step: states, and the scale of the rates."""
        return self.states + ([] if self.rate_scale is None else [self.rate_scale])


@dataclass(frozen=True)
class _Trained:
    """A parameter with its gradient, its update rule, and the rule's states for it."""

    old: relax.Var
    slope: relax.Expr
    rule: UpdateRule
    formula: Formula
    states: tuple[relax.Var, ...]

    @classmethod
    def of(cls, old: relax.Var, slope: relax.Expr, training: Training) -> _Trained:
        rule = training.rule_of(old.name)
        formula = formula_of(rule, scheduled=training.scheduled)
        return cls(old, slope, rule, formula, tuple(relax.Var(f"{old.name}.{name}", old.ty) for name in formula.states))

    @property
    def replaced(self) -> tuple[relax.Var, ...]:
        """The arguments that the update replaces, in the order in which the formula gives the new values."""
        return (*self.states, self.old)


@dataclass
class _Shared:
    """Values that several updates read: the coefficient of clipped gradients, and the factors of each rule."""

    fixed_rates: bool
    clip: relax.Var | None = None
    factors: dict[UpdateRule, list[relax.Var]] = field(default_factory=dict)


def append_updates(
    builder: relax.BlockBuilder,
    parameters: Sequence[relax.Var],
    gradients: Sequence[relax.Expr],
    training: Training,
    bindings: Sequence[Binding],
) -> Updates:
    """Append to a step the updates of its parameters.

    Of a table that is only looked up in, the looked-up rows are updated in place, if the rule only subtracts the
    scaled gradient. A matrix's update is written so that it fuses with its gradient's kernel; clipped gradients must
    wait for all others. Vectors are updated in groups of neighbours, last first: their gradients are ready at about the
    same time of the backward pass. The kernels are put into the builder's module.
    """
    trained = [_Trained.of(old, slope, training) for old, slope in zip(parameters, gradients, strict=True)]
    new = {old: relax.Var(f"{old.name}_new", old.ty) for item in trained for old in item.replaced}
    states = [state for item in trained for state in item.states]
    every, shared, rate_scale = list(bindings), _Shared(fixed_rates=not training.scheduled), None
    if training.clip_norm is not None and trained:
        every, shared.clip = clipped(builder, bindings, gradients, training.clip_norm)
    if counted := {item.rule: item.formula for item in trained if item.formula.factor_count}:
        step = relax.Var(STEP, relax.TensorType((), "int64"))
        rate_scale = relax.Var(RATE_SCALE, relax.TensorType((), "float64")) if training.scheduled else None
        call = builder.call_te(
            lambda step, scales: count(step, list(counted.values()), *scales),
            step,
            [] if rate_scale is None else [rate_scale],
            primfunc_name_hint="step_factors",
            primfunc_attrs=OPAQUE,
        )
        for rule, formula in counted.items():
            kinds = [relax.TensorType((), "float32")] * formula.factor_count
            shared.factors[rule] = [relax.DataflowVar(f"factor{index}", kind) for index, kind in enumerate(kinds)]
        new[step] = relax.Var(f"{STEP}_new", step.ty)
        states.append(step)
        every += bind(call, [new[step], *(factor for some in shared.factors.values() for factor in some)])
    bound = {binding.var: binding.value for binding in bindings}
    return Updates(every + _kernels(builder, trained, shared, new, bound), new, states, rate_scale)


def _kernels(
    builder: relax.BlockBuilder,
    trained: Sequence[_Trained],
    shared: _Shared,
    new: Mapping[relax.Var, relax.Var],
    bound: Mapping[relax.Var, relax.Expr],
) -> list[Binding]:
    """Return the bindings that update parameters."""
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
            change = relax.DataflowVar(f"{item.old.name}_change", item.old.ty)
            rate = relax.const(item.rule.learning_rate, "float32")
            every.append(Binding(change, relax.op.multiply(item.slope, rate)))
            every.append(Binding(new[item.old], relax.op.subtract(item.old, change)))
        else:
            every += _updated(builder, [item], shared, new, _FUSING)
    for rate, lookups in tables.items():
        for group in together(lookups):
            olds = list(dict.fromkeys(lookup.table for lookup in group))
            every += bind(call_embedding_update(builder, group, rate), [new[old] for old in olds])
    vectors.reverse()
    for start in range(0, len(vectors), TOGETHER):
        every += _updated(builder, vectors[start : start + TOGETHER], shared, new, OPAQUE)
    return every


def _updated(
    builder: relax.BlockBuilder,
    group: Sequence[_Trained],
    shared: _Shared,
    new: Mapping[relax.Var, relax.Var],
    attributes: Mapping[str, int],
) -> list[Binding]:
    """Return one kernel that updates some parameters and the states of their rules."""
    rules = list(dict.fromkeys(item.rule for item in group))

    def kernel(
        olds: list[te.Tensor],
        slopes: list[te.Tensor],
        states: list[list[te.Tensor]],
        clip: list[te.Tensor],
        factors: list[list[te.Tensor]],
    ) -> list[te.Tensor]:
        results = []
        for item, old, slope, kept in zip(group, olds, slopes, states, strict=True):

            def clipped(at: Sequence[tirx.PrimExpr], slope: te.Tensor = slope) -> tirx.PrimExpr:
                return slope(*at) * clip[0]() if clip else slope(*at)

            own = [factor() for factor in factors[rules.index(item.rule)]]
            results += item.formula.update(old, clipped, kept, own)
        return results

    call = builder.call_te(
        kernel,
        [item.old for item in group],
        [item.slope for item in group],
        [list(item.states) for item in group],
        [] if shared.clip is None else [shared.clip],
        [shared.factors.get(rule, []) for rule in rules],
        primfunc_name_hint=f"{group[0].formula.name}s" if len(group) > 1 else group[0].formula.name,
        primfunc_attrs=dict(attributes),
    )
    return bind(call, [new[old] for item in group for old in item.replaced])


# Clipping by the norm over all gradients: the squares of each are added up as soon as it is computed.

_RUN = 4096
"""Squares that are added in float32, the sums of such runs in float64: all in float32 would lose digits."""
_AWAY_FROM_ZERO = 1e-6
"""Added to the norm, as in PyTorch's `clip_grad_norm_`."""


def clipped(
    builder: relax.BlockBuilder, bindings: Sequence[Binding], gradients: Sequence[relax.Expr], most: float
) -> tuple[list[Binding], relax.Var]:
    """Compute the factor that makes the 2-norm of all gradients `most` at most: min(1, most / (norm + 1e-6)).

    Each gradient is read right after one of the bindings computes it, while caches have it. Return the bindings with
    the new ones among them, and the factor, a float32 without axes.
    """
    binding_index = {binding.var: index for index, binding in enumerate(bindings)}
    values = {binding.var: binding.value for binding in bindings}

    def source(gradient: relax.Expr) -> relax.Expr:
        while isinstance(values.get(gradient), relax.Var):
            gradient = values[gradient]
        return gradient

    def position(group: Sequence[relax.Expr]) -> int:
        return max(binding_index.get(gradient, -1) for gradient in group)

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
    return [*every, Binding(coefficient, call)], coefficient


def _runs(gradient: relax.Expr) -> tuple[int, int]:
    """Return the shape of a gradient as rows: the longest of at most `_RUN` elements that divide it."""
    size = prod(shape_of(gradient))
    length = next(length for length in range(min(size, _RUN), 0, -1) if size % length == 0)
    return size // length, length


def add_squares(gradients: list[te.Tensor], before: list[te.Tensor]) -> te.Tensor:
    """Add the squares of all elements of matrices to the sum before, if there is one, in float64."""
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
        # In this order NaN stays NaN, as in PyTorch.
        return tirx.Select(share >= one, one, share).astype("float32")

    return te.compute((), value, name="clip_coefficient")


# Tables that are only looked up in: their gradient is never computed, the looked-up rows are updated in place.


def lookups_of(table: relax.Var, gradient: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> list[Lookup] | None:
    """Return the lookups whose gradients `gradient` is the sum of, in order; None if it sums anything else too."""
    value = bound_value(gradient, bound)
    if is_call(value, "relax.add"):
        parts = [lookups_of(table, argument, bound) for argument in value.args]
        return None if None in parts else [lookup for part in parts for lookup in part]
    is_lookup = is_call(value, "relax.grad.take_backward") and value.attrs.axis == 0
    if not is_lookup or len(shape_of(value)) != 2:  # noqa: PLR2004  (rows and columns)
        return None
    slope, _, indices = value.args
    return [Lookup(table, indices, *_columns(slope, bound))]


def together(lookups: Sequence[list[Lookup]]) -> list[list[Lookup]]:
    """Group the lookups of several tables, by table, that read the same slope: one kernel for each group.

    A table with several lookups stays by itself, which keeps all of it in one kernel.
    """
    groups: dict[object, list[Lookup]] = {}
    for number, of_table in enumerate(lookups):
        key = of_table[0].slope if len(of_table) == 1 else number
        groups.setdefault(key, []).extend(of_table)
    return list(groups.values())


def _columns(slope: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Expr, int]:
    """Return where a slope can be read: a wider matrix instead of a copy of its columns, and the first column."""
    source = bound_value(slope, bound)
    if not is_call(source, "relax.strided_slice") or ints(source.args[1]) != (1,):
        return slope, 0
    wide, _, begin = source.args[:3]
    return (wide, ints(begin)[0]) if len(shape_of(wide)) == 2 else (slope, 0)  # noqa: PLR2004  (matrices)
