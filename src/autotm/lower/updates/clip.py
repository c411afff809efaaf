"""Clipping by the norm over all gradients: the squares of each are added up as soon as it is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import relax, te, tirx

from autotm.kernels.code import OPAQUE
from autotm.lower.updates.formulas import TOGETHER, is_vector

_RUN = 4096
"""Squares that are added in float32, the sums of such runs in float64: all in float32 would lose digits."""
_AWAY_FROM_ZERO = 1e-6
"""As PyTorch's `clip_grad_norm_` has it."""

Binding = relax.VarBinding


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
