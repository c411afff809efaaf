"""Reductions on a GPU, their terms shared among threads, and functions that work row by row."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.cuda.device import WARP, CudaDevice
from autotm.kernels.cuda.stage import (
    Ids,
    Loops,
    Place,
    Stage,
    barrier,
    device_memory,
    each,
    launch,
    local,
    shared,
    strided,
    substituted,
)
from autotm.kernels.tir import Index, variables_of

# Reductions: a thread or a thread block for each result, terms shared among threads, partial results for long ones.
#
# Sums are in float32, added in an order that depends on shapes and device facts only: results are the same every time.

Combine = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
_COMBINES: dict[str, Combine] = {"Add": lambda a, b: a + b, "Mul": lambda a, b: a * b, "Max": tirx.max, "Min": tirx.min}
_THREADS = 256  # Threads of a block.
_FEW_TERMS = 64  # With at most so many, one thread adds all terms of a result.
_TERMS_OF_A_THREAD = 16
"""Least terms of a thread where terms are shared: with fewer the tree costs more than it saves."""


@dataclass(frozen=True)
class Reducer:
    """How terms are combined, and what there is before the first."""

    combine: Combine
    identity: tirx.Expr
    term: tirx.Expr
    dtype: str


def reducer_of(block: Loops) -> Reducer | None:
    """Return how a block combines its terms; None if it is no plain sum, product, maximum or minimum."""
    if block.init is None or any(variables_of(block.init.value)):
        return None
    combine, value, term = _COMBINES.get(block.nest.combines), block.store.value, None

    def is_own_load(expression: tirx.Expr) -> bool:
        """Return whether an expression is the block's own result so far."""
        source = getattr(expression, "source", None)
        return source is not None and source.same_as(block.result)

    if isinstance(value, tirx.Select) and is_own_load(value.true_value):
        combine, term = _extremum(value), value.false_value
    elif combine is not None and is_own_load(value.a) != is_own_load(value.b):
        term = value.b if is_own_load(value.a) else value.a
    if combine is None or term is None:
        return None
    return Reducer(combine, block.init.value, term, str(block.result.dtype))


def _extremum(value: tirx.Select) -> Combine | None:
    """Return the maximum or minimum in which NaN stays, of which `value` is one step; None of another choice."""
    order = getattr(value.condition, "a", None)
    if not isinstance(order, tirx.GT | tirx.LT):
        return None
    is_largest = isinstance(order, tirx.GT)
    return lambda a, b: tirx.Select(tirx.any(a > b if is_largest else a < b, tirx.isnan(a)), a, b)


@dataclass(frozen=True)
class Split:
    """Threads of a block by results (`across`) and by terms of a result (`along`), and blocks that share the terms."""

    across: int
    along: int
    parts: int


def split_of(block: Loops, device: CudaDevice) -> Split:
    """Return enough threads to fill the device, reading neighbouring elements where they are."""
    results, terms = math.prod(block.spatial_extents), math.prod(block.reduced_extents)
    enough = device.multiprocessors * device.threads // 2
    if terms <= _FEW_TERMS or (results >= enough and not _walks_along(block)):
        return Split(128, 1, 1)
    if _walks_along(block):
        along = min(_THREADS, max(WARP, 1 << (terms // _TERMS_OF_A_THREAD).bit_length()))
        return Split(1, along, _parts(results, terms, along, device))
    along = min(_THREADS // WARP, 1 << (max(1, terms // _TERMS_OF_A_THREAD).bit_length() - 1))
    return Split(WARP, along, _parts(math.ceil(results / WARP), terms, along, device))


def _parts(blocks: int, terms: int, along: int, device: CudaDevice) -> int:
    wanted = math.ceil(2 * device.multiprocessors / blocks)
    return max(1, min(wanted, terms // (along * _TERMS_OF_A_THREAD)))


def _walks_along(block: Loops) -> bool:
    """Return whether the largest operand is contiguous along a reduced axis."""
    reduced = {block.nest.variables[axis] for axis in block.nest.reduction}
    loads = [access for access in block.nest.loads if access.indices and not access.buffer.same_as(block.result)]
    if not loads:
        return False
    largest = max(loads, key=lambda access: tir.elements(access.buffer))
    return bool(variables_of(largest.indices[-1]) & reduced)


def reduction(block: Loops, device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    """Return the stages of a reduction, and the workspaces that they need."""
    reducer = reducer_of(block)
    results = math.prod(block.spatial_extents)
    if reducer is None:
        return [each(results, _THREADS, lambda index: serial(block, functools.partial(block.at, index)))], []
    split = split_of(block, device)
    if split.parts == 1:
        return [_shared_terms(block, reducer, split, None)], []
    partial = device_memory((split.parts, results), reducer.dtype, "partial")
    return [_shared_terms(block, reducer, split, partial), _combined(block, reducer, split, partial)], [partial]


def serial(
    block: Loops,
    values: Callable[[Index], Mapping[tirx.Var, tirx.Expr]],
    places: Mapping[tirx.Buffer, Place] | None = None,
) -> tirx.Stmt:
    """Emit all terms of one result by one thread, as the function has them; `values` are its variables' at a term."""
    start = substituted(block.init, values(0), places)
    terms = math.prod(block.reduced_extents)
    return tir.sequence([start, tir.loop(terms, lambda at: substituted(block.store, values(at), places), "term")])


def accumulated(
    reducer: Reducer,
    total: tirx.Buffer,
    count: int,
    term: Callable[[Index], tirx.Expr],
    first: Index,
    end: Index,
    step: int,
) -> tirx.Stmt:
    """Combine into `total[0]` the terms first, first + step, ... below `end`, of `count` steps at most."""

    def one(at: Index) -> tirx.Stmt:
        return tir.store(total, 0, reducer.combine(tir.load(total, 0), term(at)))

    def turn(index: Index) -> tirx.Stmt:
        at = first + index * step
        return tir.choose(at < tir.number(end), one(at), None)

    is_plain = step == 1 and isinstance(end, int)
    loop = tir.loop(count, one, "term") if is_plain else tir.loop(math.ceil(count / step), turn, "turn")
    return tir.sequence([tir.store(total, 0, reducer.identity), loop])


def tree(reducer: Reducer, slots: tirx.Buffer, along: int, across: int, place: Ids) -> tirx.Stmt:
    """Combine `slots[along, across]` over its first axis into `slots[0, :]`; every thread comes here.

    `place` is (a thread's position along, its position across); `along` is a power of two.
    """
    steps = [barrier()]
    half = along // 2
    while half:
        mine = place[0] * across + place[1]
        both = reducer.combine(tir.load(slots, mine), tir.load(slots, mine + half * across))
        steps += [tir.choose(place[0] < tir.number(half), tir.store(slots, mine, both), None), barrier()]
        half //= 2
    return tir.sequence(steps)


def _shared_terms(block: Loops, reducer: Reducer, split: Split, partial: tirx.Buffer | None) -> Stage:
    results, terms = math.prod(block.spatial_extents), math.prod(block.reduced_extents)
    length = math.ceil(terms / split.parts)
    columns = math.ceil(results / split.across)

    def one(blocks: Ids, threads: Ids) -> tirx.Stmt:
        total = local(1, reducer.dtype, "total")
        column, part = blocks[0] * split.across + threads[0], blocks[1]
        is_inside = results % split.across == 0 or column < tir.number(results)
        end = tirx.min((part + 1) * length, tir.number(terms)) if split.parts > 1 else terms
        first = part * length + threads[1]

        def term(at: Index) -> tirx.Expr:
            return substituted(reducer.term, block.at(column, at))

        start = [tirx.AllocBuffer(total), tir.store(total, 0, reducer.identity)]
        added = accumulated(reducer, total, length, term, first, end, split.along)
        start.append(tir.choose(is_inside, added, None))
        if split.along == 1:
            return tir.sequence([*start, tir.choose(is_inside, finish(column, part, tir.load(total, 0)), None)])
        slots = shared(split.along * split.across, reducer.dtype, "slots")
        mine = threads[1] * split.across + threads[0]
        is_first = threads[1] == tir.number(0)
        writes = is_first if isinstance(is_inside, bool) else tirx.all(is_first, is_inside)
        return tir.sequence(
            [
                tirx.AllocBuffer(slots),
                *start,
                tir.store(slots, mine, tir.load(total, 0)),
                tree(reducer, slots, split.along, split.across, (threads[1], threads[0])),
                tir.choose(writes, finish(column, part, tir.load(slots, threads[0])), None),
            ]
        )

    def finish(column: tirx.Expr, part: tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
        if partial is not None:
            return tir.store(partial, part * results + column, value)
        return _store_result(block, column, value)

    return launch([columns, split.parts], [split.across, split.along], one)


def _combined(block: Loops, reducer: Reducer, split: Split, partial: tirx.Buffer) -> Stage:
    """Emit the stage that combines the parts of each result, in their order."""
    results = math.prod(block.spatial_extents)

    def one(index: tirx.Expr) -> tirx.Stmt:
        total = local(1, reducer.dtype, "total")

        def add(part: Index) -> tirx.Stmt:
            value = tir.load(partial, part * results + index)
            return tir.store(total, 0, reducer.combine(tir.load(total, 0), value))

        clear, combined = tir.store(total, 0, reducer.identity), tir.loop(split.parts, add, "part")
        stored = _store_result(block, index, tir.load(total, 0))
        return tir.sequence([tirx.AllocBuffer(total), clear, combined, stored])

    return each(results, 128, one)


def _store_result(block: Loops, column: tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
    indices = [substituted(index, block.at(column)) for index in block.store.indices]
    return tirx.BufferStore(block.result, value, indices)


# Functions that work row by row (softmax, norms): a thread block for each row, what lies between in shared memory.
#
# Operands are read from device memory once or twice, where a launch for each block of the function would also write and
# read every intermediate tensor there.

_MOST_SHARED_BYTES = 32 << 10
"""Shared memory of a block at most: more would leave a multiprocessor with too few blocks."""
_MOST_THREADS = 256  # Threads of a block, at most.
_ELEMENTS_OF_A_THREAD = 4  # Elements of a row before a block gets more threads.
_SHORT = 4096
"""Elements of a row that one thread block works off in less time than further launches take."""
_SHARED_DTYPES = ("float32", "float64", "int32", "int64")


def rows_of(
    blocks: Sequence[Loops], intermediates: Sequence[tirx.Buffer], device: CudaDevice
) -> tuple[Stage, list[tirx.Buffer]] | None:
    """Return a stage for the whole function, and the intermediates in device memory; None where it has no rows.

    Long rows must be enough to fill the device.
    """
    reduced = [block for block in blocks if block.nest.reduction]
    if len(blocks) == 1 or not reduced or None in map(reducer_of, reduced):
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
    """Return whether each row of every result depends on the same row of the others only."""
    leading = blocks[0].spatial_extents[:axes]
    written = {block.result for block in blocks}
    least = min(tir.elements(block.result) for block in blocks if block.result not in set(intermediates))
    for block in blocks:
        if block.spatial_extents[:axes] != leading:
            return False
        variables = block.nest.variables[:axes]
        for access in block.nest.accesses:
            # An operand as large as a result may be the memory that the result is written to.
            matters = access.buffer in written or tir.elements(access.buffer) >= least
            if matters and not tir.is_own(access.indices[:axes], variables):
                return False
    return True


def _placed(
    intermediates: Sequence[tirx.Buffer], axes: int
) -> tuple[dict[tirx.Buffer, tirx.Buffer], list[tirx.Buffer]]:
    """Return, by intermediate, the shared memory that holds a row of it; and the intermediates that do not fit."""
    inner: dict[tirx.Buffer, tirx.Buffer] = {}
    taken = 0
    for buffer in sorted(intermediates, key=tir.elements):
        size, dtype = math.prod(tir.extents(buffer)[axes:]), str(buffer.dtype)
        width = size * int(buffer.dtype.itemsize)
        if dtype in _SHARED_DTYPES and taken + width <= _MOST_SHARED_BYTES:
            taken += width
            inner[buffer] = shared(size, dtype, f"row{len(inner)}")
    return inner, [buffer for buffer in intermediates if buffer not in inner]


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
            dtype = str(block.result.dtype)
            if block.nest.reduction and self._width(block) == 1:
                steps.append(self._reduced(block, row, (thread, threads), (slots[dtype], totals[dtype])))
            else:
                steps.append(strided(self._width(block), threads, thread, functools.partial(self._one, block, row)))
            steps.append(barrier())
        return tir.sequence(steps)

    def _places(self) -> dict[tirx.Buffer, Place]:
        """Return, by intermediate in shared memory, where its elements of this row are there."""

        def place_of(buffer: tirx.Buffer, memory: tirx.Buffer) -> Place:
            extents = tir.extents(buffer)[self.axes :]

            def place(indices: Ids) -> tuple[tirx.Buffer, Ids]:
                position: Index = tir.number(0)
                for extent, index in zip(extents, indices[self.axes :], strict=True):
                    position = position * extent + index
                return memory, [position]

            return place

        return {buffer: place_of(buffer, memory) for buffer, memory in self.inner.items()}

    def _one(self, block: Loops, row: Index, at: Index) -> tirx.Stmt:
        """Emit a result that one thread computes by itself."""
        values = functools.partial(block.in_row, self.axes, row, at)
        if block.nest.reduction:
            return serial(block, values, self._places())
        return substituted(block.store, values(), self._places())

    def _reduced(
        self, block: Loops, row: Index, threads: tuple[tirx.Expr, int], memory: tuple[tirx.Buffer, tirx.Buffer]
    ) -> tirx.Stmt:
        """Emit a result of the whole row: terms shared among the threads, then combined in a tree."""
        (thread, count), (slots, total) = threads, memory
        reducer, terms = reducer_of(block), math.prod(block.reduced_extents)
        assert reducer is not None, "rows_of has looked"

        def term(at: Index) -> tirx.Expr:
            return substituted(reducer.term, block.in_row(self.axes, row, 0, at), self._places())

        indices = [substituted(index, block.in_row(self.axes, row, 0)) for index in block.store.indices]
        write = tirx.BufferStore(block.result, tir.load(slots, 0), indices)
        return tir.sequence(
            [
                accumulated(reducer, total, terms, term, thread, terms, count),
                tir.store(slots, thread, tir.load(total, 0)),
                tree(reducer, slots, count, 1, (thread, tir.number(0))),
                tir.choose(thread < tir.number(1), substituted(write, {}, self._places()), None),
            ]
        )
