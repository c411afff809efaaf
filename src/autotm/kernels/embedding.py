"""Rows of a table: looked up, and updated where they were looked up. Float32 tables (rows, width), integer indices.

Indices lie in [0, rows); nothing checks that at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, s_tir, te, tirx

from autotm.kernels import tir
from autotm.kernels.generated import Code, replace_body
from autotm.kernels.target import TargetInfo
from autotm.kernels.tiling import PARALLEL_BYTES

_OPAQUE = 8
"""TVM's operator pattern `kOpaque`: never fused."""


@dataclass(frozen=True)
class Lookup:
    """One use of a table, as its update needs it.

    Attributes:
        indices: of shape (count,), any integer type.
        slope: gradient of what was looked up, (count, at least width).
        column: the first of slope's columns that belong to the lookup; a concatenation's gradient holds several.
    """

    indices: relax.Expr
    slope: relax.Expr
    column: int = 0


def embedding(table: te.Tensor, indices: te.Tensor) -> te.Tensor:
    """The rows of `table` that `indices`, of any shape, name: (*indices.shape, width)."""

    def row(*at: tirx.Var) -> tirx.Expr:
        return table[indices(*at[:-1]).astype("int64"), at[-1]]

    return te.compute((*indices.shape, table.shape[1]), row, name="embedding")


def call_embedding_update(
    builder: relax.BlockBuilder, table: relax.Expr, lookups: Sequence[Lookup], rate: float
) -> relax.Expr:
    """A call of the kernel that takes `rate` times the gradient of `lookups` off `table`, in place.

    The result is the whole table, yet only rows that were looked up are written, and nothing of the first operand is
    read: **the result's memory must be that of `table`**, as the memory of every updated parameter is. Each
    occurrence of a row is subtracted by itself, in the order of `lookups`, then of their indices.
    """
    columns = [lookup.column for lookup in lookups]
    operands = [operand for lookup in lookups for operand in (lookup.indices, lookup.slope)]
    return builder.call_te(
        lambda *tensors: embedding_update(tensors[0], tensors[1:], columns, rate),
        table,
        *operands,
        primfunc_name_hint="embedding_update",
        primfunc_attrs={"op_pattern": _OPAQUE},
    )


def embedding_update(table: te.Tensor, operands: Sequence[te.Tensor], columns: Sequence[int], rate: float) -> te.Tensor:
    """The kernel of `call_embedding_update`; `operands` are indices and slope of each lookup in turn."""

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        return _Update(outs[0], tuple(ins[1::2]), tuple(ins[2::2]), tuple(columns), rate).rows(lanes=1)

    return te.extern(
        [table.shape],
        [table, *operands],
        body,
        dtype=[table.dtype],
        in_buffers=[_buffer(tensor, f"operand{slot}") for slot, tensor in enumerate((table, *operands))],
        out_buffers=[_buffer(table, "embedding_update")],
        name="embedding_update",
        attrs={"columns": list(columns), "rate": tirx.FloatImm("float32", rate)},
    )


def schedule_embedding_update(
    sch: s_tir.Schedule, main_block: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int
) -> None:
    """Replace the plain loop in `sch` by vectors, and share the table's rows among `threads` threads."""
    block = sch.get(main_block)
    *operands, table = next(iter(sch.mod.functions.values())).params
    columns = tuple(int(column) for column in block.annotations["columns"])
    rate = float(block.annotations["rate"])
    update = _Update(table, tuple(operands[1::2]), tuple(operands[2::2]), columns, rate)
    body = update.rows(info.lanes) if update.touched_bytes < PARALLEL_BYTES else update.shared(info.lanes, threads)
    replace_body(sch, Code(body, ()))


@dataclass(frozen=True)
class _Update:
    """The loops of an update; `table` is both what is read and what is written."""

    table: tirx.Buffer
    indices: tuple[tirx.Buffer, ...]
    slopes: tuple[tirx.Buffer, ...]
    columns: tuple[int, ...]
    rate: float

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    @property
    def touched_bytes(self) -> int:
        """Read and written: each occurrence's row, and its slope."""
        return sum(int(indices.shape[0]) for indices in self.indices) * 3 * 4 * self.width

    def shared(self, lanes: int, threads: int) -> tirx.Stmt:
        """Every thread reads all indices and updates the rows that are its own, so no row has two writers."""
        if threads == 1:
            return self.rows(lanes)

        def of_thread(thread: tir.Index) -> tirx.Stmt:
            return self.rows(lanes, lambda row: tirx.truncmod(row, tir.number(threads)) == thread)

        return tir.loop(threads, of_thread, "thread", tirx.ForKind.PARALLEL)

    def rows(self, lanes: int, mine: Callable[[tirx.Expr], tirx.Expr] | None = None) -> tirx.Stmt:
        """All occurrences in order, or those of the rows that are `mine`."""

        def one(lookup: int, at: tir.Index) -> tirx.Stmt:
            row = tirx.Cast("int64", tir.load(self.indices[lookup], at))

            def subtract(row: tir.Index) -> tirx.Stmt:
                change = self._subtract(lookup, row, at, lanes)
                return change if mine is None else tir.choose(mine(row), change, None)

            return tir.bind(row, subtract, "row")

        return tir.sequence(
            [
                tir.loop(int(indices.shape[0]), lambda at, lookup=lookup: one(lookup, at), "occurrence")
                for lookup, indices in enumerate(self.indices)
            ]
        )

    def _subtract(self, lookup: int, row: tir.Index, occurrence: tir.Index, lanes: int) -> tirx.Stmt:
        slope = self.slopes[lookup]
        begin = occurrence * int(slope.shape[1]) + self.columns[lookup]

        def vector(at: tir.Index, width: int) -> tirx.Stmt:
            place = row * self.width + at
            rate = tir.splat(tirx.FloatImm("float32", self.rate), width)
            change = rate * tir.load(slope, begin + at, width)
            return tir.store(self.table, place, tir.load(self.table, place, width) - change, width)

        return tir.spans(self.width, lanes, vector)


def _buffer(tensor: te.Tensor, name: str) -> tirx.Buffer:
    return tirx.decl_buffer(tensor.shape, tensor.dtype, name, layout=None)
