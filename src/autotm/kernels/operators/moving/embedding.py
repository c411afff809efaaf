"""Rows of a table: looked up, and updated where they were looked up. Float32 tables (rows, width), integer indices.

Indices lie in [0, rows). One that does not stands for the nearest that does: no kernel leaves its operands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from tvm import relax, s_tir, te, tirx

from autotm.kernels.code import OPAQUE, PARALLEL_BYTES, Code, TargetInfo, parameters, replace_body, tir


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
    """A lookup by the positions of its operands: the table among the tables, the others among the others."""

    table: int
    indices: int
    slope: int
    column: int = 0


def embedding(table: te.Tensor, indices: te.Tensor) -> te.Tensor:
    """The rows of `table` that `indices`, of any shape, name: (*indices.shape, width)."""
    return taken(table, indices, 0, "embedding")


def taken(x: te.Tensor, indices: te.Tensor, axis: int, name: str = "taken") -> te.Tensor:
    """The entries along an axis that `indices`, of any shape, name; their axes take the place of that axis.

    An index beyond the last takes the nearest. TVM needs to see bounds: where it sees none, it makes addresses of
    two widths out of one loop, and finds fault with that.
    """
    end = axis + len(indices.shape)

    def entry(*at: tirx.Var) -> tirx.Expr:
        return x(*at[:axis], nearest(indices(*at[axis:end]), x.shape[axis]), *at[end:])

    return te.compute((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), entry, name=name)


def nearest(index: tirx.Expr, extent: tir.Index) -> tirx.Expr:
    """An index as int64, or the one nearest to it in [0, extent)."""
    return tirx.max(tirx.min(index.astype("int64"), tir.number(int(extent) - 1)), tir.number(0))


def call_embedding_concat(builder: relax.BlockBuilder, parts: Sequence[tuple[relax.Expr, ...]]) -> relax.Expr:
    """A call that puts parts side by side: (rows, width) matrices, given alone, and lookups, as (table, indices).

    As `embedding` and `concat` in turn, but what is looked up is written once, where it belongs.
    """
    lengths = [len(part) for part in parts]

    def kernel(*tensors: te.Tensor) -> te.Tensor:
        rest = iter(tensors)
        return embedding_concat([tuple(itertools.islice(rest, length)) for length in lengths])

    return builder.call_te(
        kernel,
        *itertools.chain.from_iterable(parts),
        primfunc_name_hint="embedding_concat",
        primfunc_attrs=OPAQUE,
    )


def embedding_concat(parts: Sequence[tuple[te.Tensor, ...]]) -> te.Tensor:
    """The kernel of `call_embedding_concat`, already scheduled."""
    tensors = list(itertools.chain.from_iterable(parts))
    widths = [int(part[0].shape[1]) for part in parts]
    count = int(parts[0][-1].shape[0])
    begins = list(itertools.accumulate(widths, initial=0))

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        def row(at: tir.Index) -> tirx.Stmt:
            rest = iter(ins)
            copies = []
            for part, begin in zip(parts, begins, strict=False):
                source, *indices = itertools.islice(rest, len(part))
                copies.append(_copy_row(outs[0], at, begin, source, *indices))
            return tir.sequence(copies)

        is_parallel = 2 * 4 * count * begins[-1] >= PARALLEL_BYTES
        return tir.loop(count, row, "row", tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL)

    return te.extern(
        [(count, begins[-1])],
        tensors,
        body,
        dtype=[parts[0][0].dtype],
        in_buffers=[_buffer(tensor, f"operand{slot}") for slot, tensor in enumerate(tensors)],
        name="embedding_concat",
    )


def _copy_row(
    target: tirx.Buffer, at: tir.Index, begin: int, source: tirx.Buffer, indices: tirx.Buffer | None = None
) -> tirx.Stmt:
    """Row `at` of a matrix, or the row that `indices[at]` names, to row `at` of the target."""
    width, total = int(source.shape[1]), int(target.shape[1])

    def copy(row: tir.Index) -> tirx.Stmt:
        def element(i: tir.Index) -> tirx.Stmt:
            return tir.store(target, at * total + begin + i, tir.load(source, row * width + i))

        return tir.loop(width, element, "element")

    return copy(at) if indices is None else tir.bind(nearest(tir.load(indices, at), source.shape[0]), copy, "row")


def call_embedding_update(builder: relax.BlockBuilder, lookups: Sequence[Lookup], rate: float) -> relax.Expr:
    """A call of the kernel that takes `rate` times the gradient of `lookups` off their tables, in place.

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
    """The kernel of `call_embedding_update`: a result for each table."""

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        return UpdateLoops(tuple(outs), tuple(ins[len(tables) :]), tuple(uses), rate).rows(lanes=1)

    return te.extern(
        [table.shape for table in tables],
        [*tables, *others],
        body,
        dtype=[table.dtype for table in tables],
        in_buffers=[_buffer(tensor, f"operand{slot}") for slot, tensor in enumerate((*tables, *others))],
        out_buffers=[_buffer(table, f"updated{slot}") for slot, table in enumerate(tables)],
        name="embedding_update",
        attrs={"uses": [list(astuple(use)) for use in uses], "rate": tirx.FloatImm("float32", rate)},
    )


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
        """Of the function in `sch`, whose block says what is looked up where."""
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
        """Read and written: each occurrence's row, and its slope."""
        return sum(3 * 4 * self._count(use) * self._width(use) for use in self.uses)

    def shared(self, lanes: int, threads: int) -> tirx.Stmt:
        """Every thread reads all indices and updates the rows that are its own, so no row has two writers."""
        if threads == 1:
            return self.rows(lanes)

        def of_thread(thread: tir.Index) -> tirx.Stmt:
            return self.rows(lanes, lambda row: tirx.truncmod(row, tir.number(threads)) == thread)

        return tir.loop(threads, of_thread, "thread", tirx.ForKind.PARALLEL)

    def rows(
        self, lanes: int, mine: Callable[[tirx.Expr], tirx.Expr] | None = None, column: tirx.Expr | None = None
    ) -> tirx.Stmt:
        """All occurrences in order, or those of the rows that are `mine`; whole rows, or one column of them."""

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
            rate = tir.splat(tirx.FloatImm("float32", self.rate), size)
            change = rate * tir.load(slope, begin + at, size)
            return tir.store(table, place, tir.load(table, place, size) - change, size)

        if column is not None:
            return tir.choose(column < tir.number(width), vector(column, 1), None)
        return tir.spans(width, lanes, vector)

    def _count(self, use: Use) -> int:
        return int(self.others[use.indices].shape[0])

    def _width(self, use: Use) -> int:
        return int(self.tables[use.table].shape[1])


def _buffer(tensor: te.Tensor, name: str) -> tirx.Buffer:
    return tirx.decl_buffer(tensor.shape, tensor.dtype, name, layout=None)
