"""Plain SGD: new = old - rate * gradient, appended to a step for each parameter."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from autotm.lower.operators.rules import OPAQUE

TOGETHER = 6
"""Vectors (biases, scales, shifts) that one kernel updates: each alone would take less time than its call."""


def append_updates(
    builder: relax.BlockBuilder, parameters: Sequence[relax.Var], gradients: Sequence[relax.Expr], rate: float
) -> tuple[list[relax.Var], list[relax.VarBinding]]:
    """The updated parameters, in order, and the bindings that compute them.

    A matrix's update is written so that it fuses with the kernel of its gradient. Vectors are updated in groups of
    neighbours, last first: their gradients are ready at about the same time of the backward pass.

    Args:
        builder: of the module that the update kernels are put into.
        parameters: as the step receives them.
        gradients: of each.
        rate: learning rate.
    """
    new = {old: relax.Var(f"{old.name}_new", old.ty) for old in parameters}
    pairs = list(zip(parameters, gradients, strict=True))
    bindings = []
    for old, slope in pairs:
        if not _is_vector(old):
            change = relax.DataflowVar(f"{old.name}_change", old.ty)
            bindings.append(relax.VarBinding(change, relax.op.multiply(slope, relax.const(rate, "float32"))))
            bindings.append(relax.VarBinding(new[old], relax.op.subtract(old, change)))
    vectors = [pair for pair in reversed(pairs) if _is_vector(pair[0])]
    for start in range(0, len(vectors), TOGETHER):
        bindings += _together(builder, vectors[start : start + TOGETHER], new, rate)
    return [new[old] for old in parameters], bindings


def _together(
    builder: relax.BlockBuilder,
    group: Sequence[tuple[relax.Var, relax.Expr]],
    new: dict[relax.Var, relax.Var],
    rate: float,
) -> list[relax.VarBinding]:
    olds, slopes = ([pair[side] for pair in group] for side in range(2))
    call = builder.call_te(_updates, olds, slopes, rate, primfunc_name_hint="sgd_updates", primfunc_attrs=OPAQUE)
    if len(group) == 1:
        return [relax.VarBinding(new[olds[0]], call)]
    results = relax.DataflowVar("updates", relax.TupleType([old.ty for old in olds]))
    parts = [relax.VarBinding(new[old], relax.TupleGetItem(results, index)) for index, old in enumerate(olds)]
    return [relax.VarBinding(results, call), *parts]


def _updates(olds: list[te.Tensor], slopes: list[te.Tensor], rate: float) -> list[te.Tensor]:
    """The updated vectors."""

    def update(old: te.Tensor, slope: te.Tensor) -> te.Tensor:
        return te.compute(old.shape, lambda i: old[i] - slope[i] * tirx.const(rate, old.dtype), name="sgd_update")

    return [update(old, slope) for old, slope in zip(olds, slopes, strict=True)]


def _is_vector(parameter: relax.Var) -> bool:
    return len(parameter.ty.shape) == 1
