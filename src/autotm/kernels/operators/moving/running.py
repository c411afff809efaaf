"""Running sums along an axis, and places in the order of size."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import te, tirx

from autotm.kernels.code import PARALLEL_BYTES, tir


def running_sum(x: te.Tensor, axis: int, dtype: str, *, exclusive: bool = False, reverse: bool = False) -> te.Tensor:
    """At each position of `axis` the sum up to it, in `dtype`; already scheduled.

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

        return tir.loop(outer, line, "line", tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL)

    buffers = [tirx.decl_buffer(x.shape, kind, name, layout=None) for kind, name in ((x.dtype, "x"), (dtype, "sums"))]
    return te.extern(
        [x.shape], [x], body, dtype=[dtype], in_buffers=buffers[:1], out_buffers=buffers[1:], name="running_sum"
    )


def ranks(x: te.Tensor, axis: int, *, descending: bool) -> te.Tensor:
    """How many elements along `axis` come before each one; of equal ones, those that lie before it (int32)."""
    other = te.reduce_axis((0, x.shape[axis]), "other")

    def element(*at: tirx.Var) -> tirx.Expr:
        mine, theirs = x(*at), x(*at[:axis], other, *at[axis + 1 :])
        is_before = theirs > mine if descending else theirs < mine
        is_tied = tirx.all(theirs == mine, other < at[axis])
        return te.sum(tirx.Select(tirx.any(is_before, is_tied), tirx.const(1, "int32"), tirx.const(0, "int32")), other)

    return te.compute(x.shape, element, name="ranks")


def ranked(x: te.Tensor, rank: te.Tensor, axis: int, count: int) -> te.Tensor:
    """The elements with rank 0 to `count` - 1 along `axis`."""
    return _at_ranks(rank, axis, count, x.dtype, lambda place, _: x(*place))


def ranked_places(rank: te.Tensor, axis: int, count: int, dtype: str) -> te.Tensor:
    """Where along `axis` the elements with rank 0 to `count` - 1 lie."""
    return _at_ranks(rank, axis, count, dtype, lambda _, position: tirx.Cast(dtype, position))


def _at_ranks(
    rank: te.Tensor,
    axis: int,
    count: int,
    dtype: str,
    value: Callable[[tuple[tirx.Expr, ...], tirx.Expr], tirx.Expr],
) -> te.Tensor:
    shape = [*rank.shape[:axis], count, *rank.shape[axis + 1 :]]
    position = te.reduce_axis((0, rank.shape[axis]), "position")

    def element(*at: tirx.Var) -> tirx.Expr:
        place = (*at[:axis], position, *at[axis + 1 :])
        is_here = rank(*place) == tirx.Cast("int32", at[axis])
        return te.sum(tirx.Select(is_here, value(place, position), tirx.const(0, dtype)), position)

    return te.compute(shape, element, name="ranked")
