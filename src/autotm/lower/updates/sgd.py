"""Plain SGD: new = old - rate * gradient, appended to a step for each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax, te, tirx

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import Lookup, call_embedding_update
from autotm.lower.updates.lookups import lookups_of, together
from autotm.model.files import AutotmError
from autotm.model.step import Sgd, Training

TOGETHER = 6
"""Vectors (biases, scales, shifts) that one kernel updates: each alone would take less time than its call."""

Binding = relax.VarBinding


def append_updates(
    builder: relax.BlockBuilder,
    parameters: Sequence[relax.Var],
    gradients: Sequence[relax.Expr],
    training: Training,
    bound: Mapping[relax.Var, relax.Expr],
) -> tuple[list[relax.Var], list[Binding]]:
    """The updated parameters, in order, and the bindings that compute them.

    Of a table that is only looked up in, the rows that were are updated in place. A matrix's update is written so that
    it fuses with the kernel of its gradient. Vectors are updated in groups of neighbours, last first: their gradients
    are ready at about the same time of the backward pass.

    Args:
        builder: of the module that the update kernels are put into.
        parameters: as the step receives them.
        gradients: of each.
        training: the rules.
        bound: the value of every variable of the step.
    """
    if not isinstance(training.rule, Sgd) or not training.rule.is_plain or training.rules or training.clip_norm:
        raise AutotmError(f"{training}: only one plain Sgd for all parameters has kernels yet; train with that")
    rate = training.rule.learning_rate
    new = {old: relax.Var(f"{old.name}_new", old.ty) for old in parameters}
    tables, vectors, bindings = [], [], []
    for old, slope in zip(parameters, gradients, strict=True):
        if lookups := lookups_of(old, slope, bound):
            tables.append(lookups)
        elif len(old.ty.shape) == 1:
            vectors.append((old, slope))
        else:
            change = relax.DataflowVar(f"{old.name}_change", old.ty)
            bindings.append(Binding(change, relax.op.multiply(slope, relax.const(rate, "float32"))))
            bindings.append(Binding(new[old], relax.op.subtract(old, change)))
    for lookups in together(tables):
        bindings += _rows(builder, lookups, new, rate)
    vectors.reverse()
    for start in range(0, len(vectors), TOGETHER):
        bindings += _vectors(builder, vectors[start : start + TOGETHER], new, rate)
    return [new[old] for old in parameters], bindings


def _rows(
    builder: relax.BlockBuilder, lookups: list[Lookup], new: Mapping[relax.Var, relax.Var], rate: float
) -> list[Binding]:
    """One kernel that updates the looked-up rows of some tables."""
    tables = list(dict.fromkeys(lookup.table for lookup in lookups))
    return _bind(call_embedding_update(builder, lookups, rate), [new[table] for table in tables])


def _vectors(
    builder: relax.BlockBuilder,
    group: Sequence[tuple[relax.Var, relax.Expr]],
    new: Mapping[relax.Var, relax.Var],
    rate: float,
) -> list[Binding]:
    olds, slopes = ([pair[side] for pair in group] for side in range(2))
    call = builder.call_te(_updates, olds, slopes, rate, primfunc_name_hint="sgd_updates", primfunc_attrs=OPAQUE)
    return _bind(call, [new[old] for old in olds])


def _bind(call: relax.Expr, results: list[relax.Var]) -> list[Binding]:
    """Name what a call returns: one tensor, or a tuple of them."""
    if len(results) == 1:
        return [Binding(results[0], call)]
    every = relax.DataflowVar("updates", relax.TupleType([result.ty for result in results]))
    parts = [Binding(result, relax.TupleGetItem(every, index)) for index, result in enumerate(results)]
    return [Binding(every, call), *parts]


def _updates(olds: list[te.Tensor], slopes: list[te.Tensor], rate: float) -> list[te.Tensor]:
    """The updated vectors."""

    def update(old: te.Tensor, slope: te.Tensor) -> te.Tensor:
        return te.compute(old.shape, lambda i: old[i] - slope[i] * tirx.const(rate, old.dtype), name="sgd_update")

    return [update(old, slope) for old, slope in zip(olds, slopes, strict=True)]
