"""Functions that work row by row (softmax, norms): a thread block for each row, what lies between in shared memory.

Operands are read from device memory once or twice, where a launch for each block of the function would also write and
read every intermediate tensor there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.device import WARP, CudaDevice
from autotm.kernels.cuda.nests import Loops
from autotm.kernels.cuda.reductions import Reducer, accumulated, reducer_of, tree
from autotm.kernels.cuda.stage import (
    Ids,
    Place,
    Stage,
    barrier,
    elements,
    launch,
    local,
    shared,
    strided,
    substituted,
)

_MOST_SHARED_BYTES = 32 << 10
"""Of a block: more would leave a multiprocessor with too few blocks."""
_MOST_THREADS = 256
_ELEMENTS_OF_A_THREAD = 4
_SHORT = 4096
"""Elements of a row that one thread block works off in less time than further launches take."""
_SHARED_DTYPES = ("float32", "float64", "int32", "int64")


def rows_of(
    blocks: Sequence[Loops], intermediates: Sequence[tirx.Buffer], device: CudaDevice
) -> tuple[Stage, list[tirx.Buffer]] | None:
    """One stage for the whole function, and the intermediates that stay in device memory; None where it has no rows.

    Long rows must be enough to fill the device.
    """
    if len(blocks) == 1 or not any(block.nest.reduction for block in blocks):
        return None
    if any(block.nest.reduction and reducer_of(block) is None for block in blocks):
        return None
    most = min(len(block.nest.spatial) for block in blocks)
    for axes in range(most, 0, -1):
        rows = math.prod(blocks[0].spatial_extents[:axes])
        longest = max(block.nest.iterations // rows for block in blocks)
        if (rows >= device.multiprocessors or longest <= _SHORT) and _are_rows(blocks, axes, intermediates):
            inner, outside = _placed(intermediates, axes)
            return _Rows(tuple(blocks), axes, rows, inner).stage(), outside
    return None


def _are_rows(blocks: Sequence[Loops], axes: int, intermediates: Sequence[tirx.Buffer]) -> bool:
    """Whether each row of every result depends on the same row of the others only."""
    leading = blocks[0].spatial_extents[:axes]
    written = {block.result for block in blocks}
    least = min(elements(block.result) for block in blocks if block.result not in set(intermediates))
    for block in blocks:
        if block.spatial_extents[:axes] != leading:
            return False
        variables = block.nest.variables[:axes]
        for access in (*block.nest.loads, *block.nest.stores):
            # An operand as large as a result may be the memory that the result is written to.
            matters = access.buffer in written or elements(access.buffer) >= least
            if matters and not all(
                index.same_as(variable) for index, variable in zip(access.indices[:axes], variables, strict=False)
            ):
                return False
            if matters and len(access.indices) < axes:
                return False
    return True


def _placed(
    intermediates: Sequence[tirx.Buffer], axes: int
) -> tuple[dict[tirx.Buffer, tirx.Buffer], list[tirx.Buffer]]:
    """By intermediate, the shared memory that holds a row of it; and those that there is no room for."""
    inner: dict[tirx.Buffer, tirx.Buffer] = {}
    outside, taken = [], 0
    for buffer in sorted(intermediates, key=elements):
        size = math.prod(int(extent) for extent in buffer.shape[axes:])
        width = size * int(buffer.dtype.itemsize)
        if str(buffer.dtype) not in _SHARED_DTYPES or taken + width > _MOST_SHARED_BYTES:
            outside.append(buffer)
            continue
        taken += width
        inner[buffer] = shared(size, str(buffer.dtype), f"row{len(inner)}")
    return inner, [buffer for buffer in intermediates if buffer in outside]


@dataclass(frozen=True)
class _Rows:
    blocks: tuple[Loops, ...]
    axes: int
    rows: int
    inner: dict[tirx.Buffer, tirx.Buffer]

    def stage(self) -> Stage:
        widest = max(self._width(block) * math.prod(block.reduced_extents) for block in self.blocks)
        wanted = 1 << (math.ceil(widest / _ELEMENTS_OF_A_THREAD) - 1).bit_length()
        threads = min(_MOST_THREADS, max(WARP, wanted))
        return launch([self.rows], [threads], lambda ids, at: self._body(ids[0], at[0], threads))

    def _width(self, block: Loops) -> int:
        return math.prod(block.spatial_extents[self.axes :])

    def _body(self, row: tirx.Expr, thread: tirx.Expr, threads: int) -> tirx.Stmt:
        dtypes = {str(block.result.dtype) for block in self.blocks if block.nest.reduction}
        slots = {dtype: shared(threads, dtype, f"slots_{dtype}") for dtype in sorted(dtypes)}
        totals = {dtype: local(1, dtype, f"total_{dtype}") for dtype in sorted(dtypes)}
        steps: list[tirx.Stmt] = [
            tirx.AllocBuffer(buffer) for buffer in (*self.inner.values(), *slots.values(), *totals.values())
        ]
        for block in self.blocks:
            found, dtype = reducer_of(block), str(block.result.dtype)
            if not block.nest.reduction or found is None:
                steps.append(
                    strided(self._width(block), threads, thread, lambda at, b=block: self._element(b, row, at))
                )
            elif self._width(block) == 1:
                steps.append(self._reduced(block, found, row, (thread, threads), (slots[dtype], totals[dtype])))
            else:
                steps.append(strided(self._width(block), threads, thread, lambda at, b=block: self._serial(b, row, at)))
            steps.append(barrier())
        return tir.sequence(steps)

    def _places(self) -> dict[tirx.Buffer, Place]:
        return {buffer: self._place(buffer, memory) for buffer, memory in self.inner.items()}

    def _place(self, buffer: tirx.Buffer, memory: tirx.Buffer) -> Place:
        extents = [int(extent) for extent in buffer.shape]

        def place(indices: Ids) -> tuple[tirx.Buffer, Ids]:
            position: Index = tir.number(0)
            for extent, index in zip(extents[self.axes :], indices[self.axes :], strict=True):
                position = position * extent + index
            return memory, [position]

        return place

    def _element(self, block: Loops, row: Index, at: Index) -> tirx.Stmt:
        return substituted(block.store, block.in_row(self.axes, row, at), self._places())

    def _serial(self, block: Loops, row: Index, at: Index) -> tirx.Stmt:
        def term(index: Index) -> tirx.Stmt:
            return substituted(block.store, block.in_row(self.axes, row, at, index), self._places())

        start = substituted(block.init, block.in_row(self.axes, row, at), self._places())
        return tir.sequence([start, tir.loop(math.prod(block.reduced_extents), term, "term")])

    def _reduced(
        self,
        block: Loops,
        found: Reducer,
        row: Index,
        threads: tuple[tirx.Expr, int],
        memory: tuple[tirx.Buffer, tirx.Buffer],
    ) -> tirx.Stmt:
        """A result of the whole row: terms shared among the threads, then combined in a tree."""
        (thread, count), (slots, total) = threads, memory
        terms = math.prod(block.reduced_extents)

        def term(at: Index) -> tirx.Expr:
            return substituted(found.term, block.in_row(self.axes, row, 0, at), self._places())

        indices = [substituted(index, block.in_row(self.axes, row, 0)) for index in block.store.indices]
        write = tirx.BufferStore(block.result, tir.load(slots, 0), indices)
        return tir.sequence(
            [
                accumulated(found, total, terms, term, thread, terms, count),
                tir.store(slots, thread, tir.load(total, 0)),
                tree(found, slots, count, 1, (thread, tir.number(0))),
                tir.choose(thread < tir.number(1), substituted(write, {}, self._places()), None),
            ]
        )
