"""Rows of a table looked up, concatenated and updated, and sums scattered to places that indices name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from tvm import relax, s_tir, te, tirx

from autotm.kernels import tir
from autotm.kernels.target import PARALLEL_BYTES, TargetInfo
from autotm.kernels.tir import OPAQUE, Code, parameters, replace_body

# Rows of a table: looked up, and updated where they were looked up. Float32 tables (rows, width), integer indices.
#
# Indices lie in [0, rows). One that does not stands for the nearest that does: no kernel leaves its operands.


@dataclass(frozen=True)
class Lookup:
    """One use of a table, as its update needs it.

    Attributes:
        table: what was looked up in.
        indices: of shape (count,), any integer type.
        slope: gradient of what was looked up, (count, at least the table's width).
        column: the first of slope's columns that belong to the lookup; a concatenation's gradient holds several.
    """

    table: relax.Expr
    indices: relax.Expr
    slope: relax.Expr
    column: int = 0


@dataclass(frozen=True)
class Use:
    """A lookup by the positions of its operands: `table` among the tables, the others among all other operands."""

    table: int
    indices: int
    slope: int
    column: int = 0


def embedding(table: te.Tensor, indices: te.Tensor) -> te.Tensor:
    """Return the rows of `table` that `indices`, of any shape, name: (*indices.shape, width)."""
    return taken(table, indices, 0, "embedding")


def taken(x: te.Tensor, indices: te.Tensor, axis: int, name: str = "taken") -> te.Tensor:
    """Return the entries along an axis that `indices`, of any shape, name; their axes take the place of that axis.

    An index beyond the last takes the nearest. TVM needs to see bounds: where it sees none, it makes addresses of
    two widths out of one loop, and finds fault with that.
    """
    end = axis + len(indices.shape)

    def entry(*at: tirx.Var) -> tirx.Expr:
        return x(*at[:axis], nearest(indices(*at[axis:end]), x.shape[axis]), *at[end:])

    return te.compute((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), entry, name=name)


def nearest(index: tirx.Expr, extent: tir.Index) -> tirx.Expr:
    """Return an index as int64, or the one nearest to it in [0, extent)."""
    return tirx.max(tirx.min(index.astype("int64"), tir.number(int(extent) - 1)), tir.number(0))


def call_embedding_concat(builder: relax.BlockBuilder, parts: Sequence[tuple[relax.Expr, ...]]) -> relax.Expr:
    """Return a call that puts parts side by side: (rows, width) matrices, alone, and lookups, as (table, indices).

    As `embedding` and `concat` in turn, but what is looked up is written once, where it belongs.
    """
    lengths = [len(part) for part in parts]

    def kernel(*tensors: te.Tensor) -> te.Tensor:
        rest = iter(tensors)
        return embedding_concat([tuple(itertools.islice(rest, length)) for length in lengths])

    return builder.call_te(
        kernel, *itertools.chain.from_iterable(parts), primfunc_name_hint="embedding_concat", primfunc_attrs=OPAQUE
    )


def embedding_concat(parts: Sequence[tuple[te.Tensor, ...]]) -> te.Tensor:
    """Return the kernel of `call_embedding_concat`, already scheduled."""
    tensors = list(itertools.chain.from_iterable(parts))
    count, *_ = tir.extents(parts[0][-1])
    begins = list(itertools.accumulate((int(part[0].shape[1]) for part in parts), initial=0))

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        rest = iter(ins)
        places = [(begin, *itertools.islice(rest, len(part))) for part, begin in zip(parts, begins, strict=False)]

        def row(at: tir.Index) -> tirx.Stmt:
            return tir.sequence([_copy_row(outs[0], at, *place) for place in places])

        return tir.parallel(count, row, "row", when=2 * 4 * count * begins[-1] >= PARALLEL_BYTES)

    inputs = [tirx.decl_buffer(x.shape, x.dtype, f"operand{slot}", layout=None) for slot, x in enumerate(tensors)]
    shape, dtype = (count, begins[-1]), parts[0][0].dtype
    return te.extern([shape], tensors, body, dtype=[dtype], in_buffers=inputs, name="embedding_concat")


def _copy_row(
    target: tirx.Buffer, at: tir.Index, begin: int, source: tirx.Buffer, indices: tirx.Buffer | None = None
) -> tirx.Stmt:
    """Emit a copy of row `at` of a matrix, or of the row that `indices[at]` names, to row `at` of the target."""
    width, total = int(source.shape[1]), int(target.shape[1])

    def copy(row: tir.Index) -> tirx.Stmt:
        def element(i: tir.Index) -> tirx.Stmt:
            return tir.store(target, at * total + begin + i, tir.load(source, row * width + i))

        return tir.loop(width, element, "element")

    return copy(at) if indices is None else tir.bind(nearest(tir.load(indices, at), source.shape[0]), copy, "row")


def call_embedding_update(builder: relax.BlockBuilder, lookups: Sequence[Lookup], rate: float) -> relax.Expr:
    """Return a call of the kernel that takes `rate` times the gradient of `lookups` off their tables, in place.

    The result is the table, or the tuple of all tables in order of appearance. Each is whole, yet only rows that were
    looked up are written, and nothing of the operand is read: **a result's memory must be that of its table**, as
    the memory of every updated parameter is. Each occurrence of a row is subtracted by itself, in the order of
    `lookups`, then of their indices.
    """
    tables = list(dict.fromkeys(lookup.table for lookup in lookups))
    others = list(dict.fromkeys(operand for lookup in lookups for operand in (lookup.indices, lookup.slope)))
    uses = [
        Use(tables.index(lookup.table), others.index(lookup.indices), others.index(lookup.slope), lookup.column)
        for lookup in lookups
    ]
    return builder.call_te(
        lambda *tensors: embedding_update(tensors[: len(tables)], tensors[len(tables) :], uses, rate),
        *tables,
        *others,
        primfunc_name_hint="embedding_update",
        primfunc_attrs=OPAQUE,
    )


def embedding_update(
    tables: Sequence[te.Tensor], others: Sequence[te.Tensor], uses: Sequence[Use], rate: float
) -> te.Tensor | list[te.Tensor]:
    """Return the kernel of `call_embedding_update`: a result for each table."""

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        return UpdateLoops(tuple(outs), tuple(ins[len(tables) :]), tuple(uses), rate).rows(lanes=1)

    results = [(table.shape, table.dtype) for table in tables]
    attrs = {"uses": [list(astuple(use)) for use in uses], "rate": tir.constant(rate)}
    return tir.extern(body, [*tables, *others], results, "embedding_update", attrs)


def schedule_embedding_update(
    sch: s_tir.Schedule, main_block: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int
) -> None:
    """Replace the plain loops in `sch` by vectors, and share the tables' rows among `threads` threads."""
    update = UpdateLoops.of(sch, main_block)
    body = update.rows(info.lanes) if update.touched_bytes < PARALLEL_BYTES else update.shared(info.lanes, threads)
    replace_body(sch, Code(body, ()))


@dataclass(frozen=True)
class UpdateLoops:
    """The loops of an update; `tables` are both what is read and what is written."""

    tables: tuple[tirx.Buffer, ...]
    others: tuple[tirx.Buffer, ...]
    uses: tuple[Use, ...]
    rate: float

    @classmethod
    def of(cls, sch: s_tir.Schedule, main_block: s_tir.schedule.SBlockRV) -> UpdateLoops:
        """Return the loops of the function in `sch`, whose block says what is looked up where."""
        marks = sch.get(main_block).annotations
        uses = tuple(Use(*(int(position) for position in use)) for use in marks["uses"])
        operands = parameters(sch)
        tables = 1 + max(use.table for use in uses)
        return cls(tuple(operands[-tables:]), tuple(operands[tables:-tables]), uses, float(marks["rate"]))

    @property
    def width(self) -> int:
        """Columns of the widest table."""
        return max(map(self._width, self.uses))

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written: for each occurrence its row, twice, and its slope."""
        return sum(3 * 4 * self._count(use) * self._width(use) for use in self.uses)

    def shared(self, lanes: int, threads: int) -> tirx.Stmt:
        """Emit code in which every thread reads all indices and updates its own rows: no row has two writers."""
        if threads == 1:
            return self.rows(lanes)

        def of_thread(thread: tir.Index) -> tirx.Stmt:
            return self.rows(lanes, lambda row: tirx.truncmod(row, tir.number(threads)) == thread)

        return tir.parallel(threads, of_thread, "thread")

    def rows(
        self, lanes: int, mine: Callable[[tirx.Expr], tirx.Expr] | None = None, column: tirx.Expr | None = None
    ) -> tirx.Stmt:
        """Emit all occurrences in order, or those of the rows that are `mine`; whole rows, or one column of them."""

        def one(use: Use, occurrence: tir.Index) -> tirx.Stmt:
            def subtract(row: tir.Index) -> tirx.Stmt:
                change = self._subtract(use, row, occurrence, lanes, column)
                return change if mine is None else tir.choose(mine(row), change, None)

            index = tir.load(self.others[use.indices], occurrence)
            return tir.bind(nearest(index, self.tables[use.table].shape[0]), subtract, "row")

        return tir.sequence(
            [tir.loop(self._count(use), lambda at, use=use: one(use, at), "occurrence") for use in self.uses]
        )

    def _subtract(
        self, use: Use, row: tir.Index, occurrence: tir.Index, lanes: int, column: tirx.Expr | None
    ) -> tirx.Stmt:
        table, slope, width = self.tables[use.table], self.others[use.slope], self._width(use)
        begin = occurrence * int(slope.shape[1]) + use.column

        def vector(at: tir.Index, size: int) -> tirx.Stmt:
            place = row * width + at
            change = tir.constant(self.rate, size) * tir.load(slope, begin + at, size)
            return tir.store(table, place, tir.load(table, place, size) - change, size)

        if column is not None:
            return tir.choose(column < tir.number(width), vector(column, 1), None)
        return tir.spans(width, lanes, vector)

    def _count(self, use: Use) -> int:
        return int(self.others[use.indices].shape[0])

    def _width(self, use: Use) -> int:
        return int(self.tables[use.table].shape[1])


# Sums at places that indices name: what undoes a gather. Float tensors, integer indices of any type.
#
# The gradient, seen as (outer, entries, inner), is added up in (outer, places, inner): entry e of it goes to the place
# that the indices name. Entries of one place are added in their order, whatever the number of threads. Negative indices
# count from the end. One beyond either end stands for the nearest within: no kernel leaves its operands.


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
        """Return the scatter of a `take` along an axis: `dy` has the indices' axes in place of that axis."""
        entries = math.prod(indices)
        return cls(math.prod(dy[:axis]), entries, math.prod(shape[axis + 1 :]), (shape[axis],), ((1,),), (entries,))

    @classmethod
    def of_elements(cls, dy: Sequence[int], shape: Sequence[int], axis: int) -> Scatter:
        """Return the scatter of a gather along an axis with one index for each element; other extents are equal."""
        outer, inner = math.prod(dy[:axis]), math.prod(dy[axis + 1 :])
        return cls(outer, dy[axis], inner, (shape[axis],), ((1,),), (dy[axis],), is_each=True)

    @classmethod
    def of_places(cls, shape: Sequence[int], indices: Sequence[Sequence[int]]) -> Scatter:
        """Return the scatter of indexing the first axes of `shape` by tensors that broadcast against each other."""
        rank = max(len(index) for index in indices)
        padded = [(1,) * (rank - len(index)) + tuple(index) for index in indices]
        entries = tuple(max(extents) for extents in zip(*padded, strict=True))
        inner = math.prod(shape[len(indices) :])
        # None where an index is broadcast.
        strides = tuple(
            tuple(0 if extent == 1 else math.prod(index[axis + 1 :]) for axis, extent in enumerate(index))
            for index in padded
        )
        return cls(1, math.prod(entries), inner, tuple(shape[: len(indices)]), strides, entries)

    @property
    def places(self) -> int:
        """Places of one outer index."""
        return math.prod(self.extents)


def scatter_sum(dy: te.Tensor, indices: Sequence[te.Tensor], shape: Sequence[int], scatter: Scatter) -> te.Tensor:
    """Return the sums of `dy` at the places of `shape`; zero where no index points."""

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        return ScatterLoops(scatter, ins[0], tuple(ins[1:]), outs[0]).all(lanes=1)

    attrs = {
        "sizes": [scatter.outer, scatter.entries, scatter.inner, int(scatter.is_each)],
        "extents": list(scatter.extents),
        "strides": [list(strides) for strides in scatter.strides],
        "entries": list(scatter.shape),
    }
    return tir.extern(body, [dy, *indices], [(tuple(shape), dy.dtype)], "scatter_sum", attrs)


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
        """Return the loops of the function in `sch`, whose block says what goes where."""
        marks = sch.get(main_block).annotations
        *sizes, is_each = (int(size) for size in marks["sizes"])
        strides = tuple(tuple(int(stride) for stride in item) for item in marks["strides"])
        extents, entries = (tuple(int(extent) for extent in marks[name]) for name in ("extents", "entries"))
        dy, *indices, sums = parameters(sch)
        return cls(Scatter(*sizes, extents, strides, entries, bool(is_each)), dy, tuple(indices), sums)

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written: a sum is cleared, then read and written again for each entry."""
        scatter = self.scatter
        return 4 * scatter.outer * scatter.inner * (scatter.places + 3 * scatter.entries)

    def all(self, lanes: int) -> tirx.Stmt:
        """Compute all sums on one thread."""
        return tir.loop(self.scatter.outer, lambda outer: self.part(outer, 0, self.scatter.inner, lanes), "outer")

    def shared(self, lanes: int, threads: int) -> tirx.Stmt:
        """Emit code in which the threads share the outer indices if these are enough, else columns, else places."""
        scatter = self.scatter
        if scatter.outer >= threads:
            tasks = (threads, scatter.outer)
            return tir.in_tasks(*tasks, lambda outer, _: self.part(outer, 0, scatter.inner, lanes), "outer")

        def each_outer(part: Callable[[tir.Index], tirx.Stmt]) -> tirx.Stmt:
            return tir.loop(scatter.outer, part, "outer")

        if scatter.inner % (threads * lanes) == 0:
            width = scatter.inner // threads

            def columns(index: tir.Index) -> tirx.Stmt:
                return each_outer(lambda outer: self.part(outer, index * width, width, lanes))

            return tir.parallel(threads, columns, "thread")

        def places(index: tir.Index) -> tirx.Stmt:
            first, last = (tir.number(place) for place in tir.share(index, threads, scatter.places))
            return each_outer(lambda outer: self.part(outer, 0, scatter.inner, lanes, (first, last)))

        return tir.parallel(threads, places, "thread")

    def part(
        self,
        outer: tir.Index,
        column: tir.Index,
        width: int,
        lanes: int,
        mine: tuple[tirx.Expr, tirx.Expr] | None = None,
    ) -> tirx.Stmt:
        """Emit the sums of one outer index in some columns: cleared, then added to; `mine` are a thread's places."""
        scatter = self.scatter
        lanes = 1 if scatter.is_each else lanes
        first, count = (0, scatter.places) if mine is None else (mine[0], mine[1] - mine[0])
        zero = tirx.const(0.0, self.sums.dtype)

        def clear(place: tir.Index) -> tirx.Stmt:
            at = (outer * scatter.places + first + place) * scatter.inner + column
            return tir.spans(width, lanes, lambda i, size: tir.store(self.sums, at + i, tir.splat(zero, size), size))

        def add(entry: tir.Index, column: tir.Index, width: int, place: tirx.Expr) -> tirx.Stmt:
            def to(place: tir.Index) -> tirx.Stmt:
                change = self._add(outer, entry, place, column, width, lanes)
                return change if mine is None else tir.choose(tirx.all(place >= mine[0], place < mine[1]), change, None)

            return tir.bind(place, to, "place")

        def each(entry: tir.Index) -> tirx.Stmt:
            if not scatter.is_each:
                return add(entry, column, width, self._place(entry))

            def one(i: tir.Index) -> tirx.Stmt:
                origin = (outer * scatter.entries + entry) * scatter.inner + (column + i)
                place = _counted(tir.load(self.indices[0], origin), scatter.extents[0])
                return add(entry, column + i, 1, place)

            return tir.loop(width, one, "column")

        return tir.sequence([tir.loop(count, clear, "place"), tir.loop(scatter.entries, each, "entry")])

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
    """Return an index, from the end where it is negative."""
    wide = tirx.Cast("int64", value)
    return nearest(tirx.Select(wide < tir.number(0), wide + tir.number(extent), wide), extent)
