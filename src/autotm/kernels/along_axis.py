"""Concatenation, running sums and ranks along one axis, as TE functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from tvm import te, tirx

from autotm.kernels import tir
from autotm.kernels.target import PARALLEL_BYTES

# Concatenation along one axis. Slices need no kernel here: Relax's own fuse with the elementwise work around them.
#
# Images are NHWC, so a concatenation along the channels puts the parts side by side in every pixel: no part is
# contiguous in the result, and none can be written there by a kernel that writes contiguous tensors. A view into one
# buffer for a whole dense block of DenseNet would spare the copies, but then the block's features would be one tensor,
# to be placed, moved and freed as a whole, and every reader would stride over channels that it does not use. So a
# concatenation copies once, unfused, at the memory's speed.

_MANY_ROWS = 64  # Indices before the axis from which threads share these.


def concat(inputs: Sequence[te.Tensor], axis: int) -> te.Tensor:
    """Return the inputs one after the other along `axis`; one plain copy loop per input, already scheduled.

    A te.compute would have to choose the input at every element; an extern's loops choose nothing.
    """
    shape = [int(extent) for extent in inputs[0].shape]
    axis %= len(shape)
    shape[axis] = sum(int(tensor.shape[axis]) for tensor in inputs)
    results = [(shape, inputs[0].dtype)]
    return tir.extern(lambda ins, outs: _copies(ins, outs[0], axis), inputs, results, "concat")


def _copies(inputs: Sequence[tirx.Buffer], output: tirx.Buffer, axis: int) -> tirx.Stmt:
    """Emit code for many indices before `axis`: for each, copy every input, to write the output front to back.

    With few, threads share the copy of each input along `axis` too.
    """
    is_parallel = 2 * tir.size_bytes(output) >= PARALLEL_BYTES
    begins = list(itertools.accumulate((tir.extents(source)[axis] for source in inputs), initial=0))
    parts = list(zip(inputs, begins, strict=False))

    def copies(shape: Sequence[int], parts: Sequence[tuple[tirx.Buffer, int]]) -> tirx.Stmt:
        def row(index: tir.Index) -> tirx.Stmt:
            outer = tir.unravel(index, shape)
            return tir.sequence([_copy(source, begin, output, outer, axis) for source, begin in parts])

        return tir.parallel(math.prod(shape), row, "row", when=is_parallel)

    rows = tir.extents(output)[:axis]
    if math.prod(rows) >= _MANY_ROWS:
        return copies(rows, parts)
    return tir.sequence([copies(tir.extents(part[0])[: axis + 1], [part]) for part in parts])


def _copy(source: tirx.Buffer, begin: int, output: tirx.Buffer, outer: list[tir.Index], axis: int) -> tirx.Stmt:
    """Copy all that lies behind the first indices `outer` of the source."""
    inner = tir.extents(source)[len(outer) :]

    def copy_element(position: tir.Index) -> tirx.Stmt:
        index = [tir.number(at) for at in (*outer, *tir.unravel(position, inner))]
        target = [at + begin if dimension == axis else at for dimension, at in enumerate(index)]
        return tirx.BufferStore(output, tirx.BufferLoad(source, index), target)

    return tir.loop(math.prod(inner), copy_element, "element")


# Running sums along an axis, and places in the order of size.


def running_sum(x: te.Tensor, axis: int, dtype: str, *, exclusive: bool = False, reverse: bool = False) -> te.Tensor:
    """Compute at each position of `axis` the sum up to it, in `dtype`; already scheduled.

    An exclusive sum leaves out the position itself, a reverse one runs from the end. Of truth values: whether any is
    true.
    """
    shape = tir.extents(x)
    outer, extent, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    is_parallel = 8 * math.prod(shape) >= PARALLEL_BYTES

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        source, target = ins[0], outs[0]

        def line(index: tir.Index) -> tirx.Stmt:
            def step(position: tir.Index, *, is_first: bool) -> tirx.Stmt:
                place = extent - 1 - position if reverse else position
                before = place + 1 if reverse else place - 1

                def element(column: tir.Index) -> tirx.Stmt:
                    at = (index * extent + place) * inner + column
                    last = (index * extent + before) * inner + column
                    term = tirx.Cast(dtype, tir.load(source, last if exclusive else at))
                    if is_first:
                        return tir.store(target, at, tirx.const(0, dtype) if exclusive else term)
                    total = tir.load(target, last)
                    return tir.store(target, at, tirx.any(total, term) if dtype == "bool" else total + term)

                return tir.loop(inner, element, "column")

            rest = tir.loop(extent - 1, lambda at: step(at, is_first=False), "position", start=1)
            return tir.sequence([step(0, is_first=True), *([rest] if extent > 1 else [])])

        return tir.parallel(outer, line, "line", when=is_parallel)

    return tir.extern(body, [x], [(x.shape, dtype)], "running_sum")


def ranks(x: te.Tensor, axis: int, *, descending: bool) -> te.Tensor:
    """Return how many elements along `axis` come before each one; of equal ones, those that lie before it (int32)."""
    other = te.reduce_axis((0, x.shape[axis]), "other")

    def element(*at: tirx.Var) -> tirx.Expr:
        mine, theirs = x(*at), x(*at[:axis], other, *at[axis + 1 :])
        is_before = theirs > mine if descending else theirs < mine
        is_tied = tirx.all(theirs == mine, other < at[axis])
        return te.sum(tirx.Select(tirx.any(is_before, is_tied), tirx.const(1, "int32"), tirx.const(0, "int32")), other)

    return te.compute(x.shape, element, name="ranks")


def ranked(x: te.Tensor, rank: te.Tensor, axis: int, count: int) -> te.Tensor:
    """Return the elements with rank 0 to `count` - 1 along `axis`."""
    return _at_ranks(rank, axis, count, x.dtype, lambda place, _: x(*place))


def ranked_places(rank: te.Tensor, axis: int, count: int, dtype: str) -> te.Tensor:
    """Return where along `axis` the elements with rank 0 to `count` - 1 lie."""
    return _at_ranks(rank, axis, count, dtype, lambda _, position: tirx.Cast(dtype, position))


def _at_ranks(
    rank: te.Tensor, axis: int, count: int, dtype: str, value: Callable[[tuple[tirx.Expr, ...], tirx.Expr], tirx.Expr]
) -> te.Tensor:
    shape = [*rank.shape[:axis], count, *rank.shape[axis + 1 :]]
    position = te.reduce_axis((0, rank.shape[axis]), "position")

    def element(*at: tirx.Var) -> tirx.Expr:
        place = (*at[:axis], position, *at[axis + 1 :])
        is_here = rank(*place) == tirx.Cast("int32", at[axis])
        return te.sum(tirx.Select(is_here, value(place, position), tirx.const(0, dtype)), position)

    return te.compute(shape, element, name="ranked")
