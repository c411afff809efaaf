"""Sums at places that indices name: what undoes a gather. Float tensors, integer indices of any type.

The gradient, seen as (outer, entries, inner), is added up in (outer, places, inner): entry e of it goes to the place
that the indices name. Entries of one place are added in their order, whatever the number of threads. Negative indices
count from the end. One beyond either end stands for the nearest within: no kernel leaves its operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, te, tirx

from autotm.kernels.code import PARALLEL_BYTES, Code, TargetInfo, parameters, replace_body, tir
from autotm.kernels.operators.moving.embedding import nearest


@dataclass(frozen=True)
class Scatter:
    """Which place an entry goes to.

    Attributes:
        outer, entries, inner: the gradient's shape.
        extents: of the axes that are indexed, one index each; places are numbered row by row.
        strides: of each index, elements from one entry to the next along each axis of `shape`.
        shape: of the entries, which the indices broadcast to.
        is_each: whether there is an index for every element, not for every entry: then there is one axis.
    """

    outer: int
    entries: int
    inner: int
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    is_each: bool = False

    @classmethod
    def of_axis(cls, dy: Sequence[int], shape: Sequence[int], axis: int, indices: Sequence[int]) -> Scatter:
        """Of a `take` along an axis: `dy` has the indices' axes in place of it."""
        entries = math.prod(indices)
        inner = math.prod(shape[axis + 1 :])
        return cls(math.prod(dy[:axis]), entries, inner, (shape[axis],), ((1,),), (entries,))

    @classmethod
    def of_elements(cls, dy: Sequence[int], shape: Sequence[int], axis: int) -> Scatter:
        """Of a gather along an axis with one index for each element; other extents are equal."""
        outer, inner = math.prod(dy[:axis]), math.prod(dy[axis + 1 :])
        return cls(outer, dy[axis], inner, (shape[axis],), ((1,),), (dy[axis],), is_each=True)

    @classmethod
    def of_places(cls, shape: Sequence[int], indices: Sequence[Sequence[int]]) -> Scatter:
        """Of an indexing of the first axes of `shape` by tensors that broadcast against each other."""
        rank = max(len(index) for index in indices)
        padded = [(1,) * (rank - len(index)) + tuple(index) for index in indices]
        entries = tuple(max(extents) for extents in zip(*padded, strict=True))
        inner = math.prod(shape[len(indices) :])
        strides = tuple(_strides(index) for index in padded)
        return cls(1, math.prod(entries), inner, tuple(shape[: len(indices)]), strides, entries)

    @property
    def places(self) -> int:
        """Places of one outer index."""
        return math.prod(self.extents)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next along each axis; none where it is broadcast."""
    return tuple(0 if extent == 1 else math.prod(shape[axis + 1 :]) for axis, extent in enumerate(shape))


def scatter_sum(dy: te.Tensor, indices: Sequence[te.Tensor], shape: Sequence[int], scatter: Scatter) -> te.Tensor:
    """The sums of `dy` at the places of `shape`; zero where no index points."""

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        return ScatterLoops(scatter, ins[0], tuple(ins[1:]), outs[0]).all(lanes=1)

    return te.extern(
        [tuple(shape)],
        [dy, *indices],
        body,
        dtype=[dy.dtype],
        in_buffers=[
            tirx.decl_buffer(tensor.shape, tensor.dtype, f"operand{slot}", layout=None)
            for slot, tensor in enumerate((dy, *indices))
        ],
        out_buffers=[tirx.decl_buffer(tuple(shape), dy.dtype, "sums", layout=None)],
        name="scatter_sum",
        attrs={
            "sizes": [scatter.outer, scatter.entries, scatter.inner, int(scatter.is_each)],
            "extents": list(scatter.extents),
            "strides": [list(strides) for strides in scatter.strides],
            "entries": list(scatter.shape),
        },
    )


def schedule_scatter_sum(
    sch: s_tir.Schedule, main_block: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int
) -> None:
    """Replace the plain loops in `sch` by vectors, and share the sums among `threads` threads."""
    loops = ScatterLoops.of(sch, main_block)
    is_parallel = threads > 1 and loops.touched_bytes >= PARALLEL_BYTES
    replace_body(sch, Code(loops.shared(info.lanes, threads) if is_parallel else loops.all(info.lanes), ()))


@dataclass(frozen=True)
class ScatterLoops:
    """The loops of a `scatter_sum` over its operands."""

    scatter: Scatter
    dy: tirx.Buffer
    indices: tuple[tirx.Buffer, ...]
    sums: tirx.Buffer

    @classmethod
    def of(cls, sch: s_tir.Schedule, main_block: s_tir.schedule.SBlockRV) -> ScatterLoops:
        """Of the function in `sch`, whose block says what goes where."""
        marks = sch.get(main_block).annotations
        *sizes, is_each = (int(size) for size in marks["sizes"])
        strides = tuple(tuple(int(stride) for stride in item) for item in marks["strides"])
        extents, entries = (tuple(int(extent) for extent in marks[name]) for name in ("extents", "entries"))
        dy, *indices, sums = parameters(sch)
        return cls(Scatter(*sizes, extents, strides, entries, bool(is_each)), dy, tuple(indices), sums)

    @property
    def touched_bytes(self) -> int:
        """Written once, read and written again for each entry."""
        scatter = self.scatter
        return 4 * scatter.outer * scatter.inner * (scatter.places + 3 * scatter.entries)

    def all(self, lanes: int) -> tirx.Stmt:
        """Everything, on one thread."""
        return tir.loop(self.scatter.outer, lambda outer: self.part(outer, 0, self.scatter.inner, lanes), "outer")

    def shared(self, lanes: int, threads: int) -> tirx.Stmt:
        """Threads share the outer indices where there are enough of them, else columns, else places."""
        scatter, parallel = self.scatter, tirx.ForKind.PARALLEL
        if scatter.outer >= threads:

            def part(index: tir.Index) -> tirx.Stmt:
                first, last = tir.share(index, threads, scatter.outer)
                one = lambda outer: self.part(outer, 0, scatter.inner, lanes)  # noqa: E731
                return tir.loop(last - first, one, "outer", start=first)

            return tir.loop(threads, part, "thread", parallel)
        if scatter.inner % (threads * lanes) == 0:
            width = scatter.inner // threads

            def columns(index: tir.Index) -> tirx.Stmt:
                one = lambda outer: self.part(outer, index * width, width, lanes)  # noqa: E731
                return tir.loop(scatter.outer, one, "outer")

            return tir.loop(threads, columns, "thread", parallel)

        def places(index: tir.Index) -> tirx.Stmt:
            first, last = tir.share(index, threads, scatter.places)

            def one(outer: tir.Index) -> tirx.Stmt:
                return self.part(outer, 0, scatter.inner, lanes, (tir.number(first), tir.number(last)))

            return tir.loop(scatter.outer, one, "outer")

        return tir.loop(threads, places, "thread", parallel)

    def part(
        self,
        outer: tir.Index,
        column: tir.Index,
        width: int,
        lanes: int,
        mine: tuple[tirx.Expr, tirx.Expr] | None = None,
    ) -> tirx.Stmt:
        """The sums of one outer index, in some columns: cleared, then added to; `mine` are the places of a thread."""
        scatter = self.scatter
        lanes = 1 if scatter.is_each else lanes
        first, count = (0, scatter.places) if mine is None else (mine[0], mine[1] - mine[0])
        zero = tirx.const(0.0, self.sums.dtype)

        def clear(place: tir.Index) -> tirx.Stmt:
            at = (outer * scatter.places + first + place) * scatter.inner + column
            return tir.spans(width, lanes, lambda i, size: tir.store(self.sums, at + i, tir.splat(zero, size), size))

        def add(entry: tir.Index) -> tirx.Stmt:
            def to(place: tir.Index) -> tirx.Stmt:
                change = self._add(outer, entry, place, column, width, lanes)
                return change if mine is None else tir.choose(tirx.all(place >= mine[0], place < mine[1]), change, None)

            if scatter.is_each:
                return tir.loop(width, lambda i: self._add_one(outer, entry, column + i, mine), "column")
            return tir.bind(self._place(entry), to, "place")

        return tir.sequence([tir.loop(count, clear, "place"), tir.loop(scatter.entries, add, "entry")])

    def _add(
        self, outer: tir.Index, entry: tir.Index, place: tir.Index, column: tir.Index, width: int, lanes: int
    ) -> tirx.Stmt:
        scatter = self.scatter
        to = (outer * scatter.places + place) * scatter.inner + column
        origin = (outer * scatter.entries + entry) * scatter.inner + column

        def vector(i: tir.Index, size: int) -> tirx.Stmt:
            total = tir.load(self.sums, to + i, size) + tir.load(self.dy, origin + i, size)
            return tir.store(self.sums, to + i, total, size)

        return tir.spans(width, lanes, vector)

    def _add_one(
        self, outer: tir.Index, entry: tir.Index, column: tir.Index, mine: tuple[tirx.Expr, tirx.Expr] | None
    ) -> tirx.Stmt:
        """One element, with an index of its own."""
        scatter = self.scatter
        origin = (outer * scatter.entries + entry) * scatter.inner + column

        def to(place: tir.Index) -> tirx.Stmt:
            at = (outer * scatter.places + place) * scatter.inner + column
            change = tir.store(self.sums, at, tir.load(self.sums, at) + tir.load(self.dy, origin))
            return change if mine is None else tir.choose(tirx.all(place >= mine[0], place < mine[1]), change, None)

        return tir.bind(_counted(tir.load(self.indices[0], origin), scatter.extents[0]), to, "place")

    def _place(self, entry: tir.Index) -> tirx.Expr:
        scatter = self.scatter
        where = tir.unravel(entry, scatter.shape)
        place: tir.Index = 0
        for index, strides, extent in zip(self.indices, scatter.strides, scatter.extents, strict=True):
            at = tir.number(0)
            for position, stride in zip(where, strides, strict=True):
                at += position * stride
            place = place * extent + _counted(tir.load(index, at), extent)
        return place


def _counted(value: tirx.Expr, extent: int) -> tirx.Expr:
    """An index, from the end where it is negative."""
    wide = tirx.Cast("int64", value)
    return nearest(tirx.Select(wide < tir.number(0), wide + tir.number(extent), wide), extent)
