"""Schedules of blocks with a reduction: windows, sums over leading axes, sums over trailing axes.

Long sums are blocked: sums of about n^(1/3) terms are added to sums of n^(1/3) of them, and so on, so that the
rounding error grows like n^(1/6) instead of n^(1/2) (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from autotm.kernels.blocks import Nest, variables_of
from autotm.kernels.tiling import Machine, divisor_near

_SHORT = 128
"""Terms that are added one after the other."""
_UNROLLED_TERMS = 32


def schedule_reduction(
    schedule: Schedule, block: SBlockRV, nest: Nest, machine: Machine, epilogue: SBlockRV | None
) -> None:
    """Schedule a reduction in place; `epilogue` is an elementwise block over the same axes to run on each tile."""
    loops = schedule.get_loops(block)
    spatial = [loops[axis] for axis in nest.spatial]
    terms = [loops[axis] for axis in nest.reduction]
    schedule.reorder(*spatial, *terms)
    count = nest.extent(nest.reduction)
    extents = [nest.extents[axis] for axis in nest.spatial]
    is_parallel = machine.is_parallel(nest.touched_bytes)
    if _is_row_reduction(nest) and count >= machine.lanes:
        _by_lanes(schedule, block, extents, _fuse(schedule, terms), count, is_parallel, machine)
    elif count > _SHORT and extents:
        _long(schedule, block, extents, _fuse(schedule, terms), count, is_parallel, machine)
    elif extents:
        writer = epilogue if epilogue is not None else schedule.cache_write(block, 0, "global")
        _short(schedule, block, writer, spatial, extents, terms, count, is_parallel, machine)


def _is_row_reduction(nest: Nest) -> bool:
    """Whether the terms of one sum lie next to each other in the largest operand."""
    last = nest.variables[nest.reduction[-1]]
    largest = max(nest.loads, key=lambda access: math.prod(int(extent) for extent in access.buffer.shape))
    return bool(largest.indices) and last in variables_of(largest.indices[-1])


def _short(
    schedule: Schedule,
    block: SBlockRV,
    writer: SBlockRV,
    spatial: list[LoopRV],
    extents: list[int],
    terms: list[LoopRV],
    count: int,
    is_parallel: bool,
    machine: Machine,
) -> None:
    """Few terms for each result: keep a tile of results in registers while all terms are added."""
    width = extents[-1]
    tile = machine.tile(width)
    column, inner = schedule.split(spatial[-1], [None, tile or width])
    schedule.reorder(*spatial[:-1], column, *terms, inner)
    schedule.reverse_compute_at(writer, column)
    if tile is not None:
        _vectorise(schedule, inner, tile, machine)
        _vectorise(schedule, schedule.get_loops(writer)[-1], tile, machine)
    if is_parallel:
        outer = [*spatial[:-1], column]
        shared = _shared(extents[:-1], machine)
        schedule.parallel(_fuse(schedule, outer[:shared]))
    schedule.decompose_reduction(block, terms[0])
    if tile is not None and count <= _UNROLLED_TERMS:
        for loop in terms:
            schedule.unroll(loop)


def _shared(extents: list[int], machine: Machine) -> int:
    """How many outer loops to fuse and share: as few as give each thread several pieces."""
    pieces = 1
    for axis, extent in enumerate(extents):
        pieces *= extent
        if pieces >= 8 * machine.threads:
            return axis + 1
    return len(extents) + 1


def _long(
    schedule: Schedule,
    block: SBlockRV,
    extents: list[int],
    term: LoopRV,
    count: int,
    is_parallel: bool,
    machine: Machine,
) -> None:
    """Many terms for each result: partial sums in three levels, the outermost shared among the threads."""
    parts = divisor_near(count, round(count ** (1 / 3)))
    runs = divisor_near(-(-count // parts), round(math.sqrt(count / parts)))
    part, _, _ = schedule.split(term, [parts, runs, None])
    partial = schedule.rfactor(part, 0)
    _finish(schedule, block, extents, machine)

    loops = schedule.get_loops(partial)
    *outer, column, part, run, inner = loops
    schedule.reorder(part, *outer, run, column, inner)
    short = schedule.rfactor(run, 0)
    loops = schedule.get_loops(short)
    column, inner = loops[-2:]
    tile = machine.tile(extents[-1]) or extents[-1]
    column, vector = schedule.split(column, [None, tile])
    schedule.reorder(column, inner, vector)
    schedule.reverse_compute_at(partial, column)
    if machine.tile(extents[-1]) is not None:
        _vectorise(schedule, vector, tile, machine)
        _vectorise(schedule, schedule.get_loops(partial)[-1], tile, machine)
    first_run = schedule.get_loops(partial)[len(extents)]
    if is_parallel:
        first = schedule.get_loops(short)[0]
        schedule.parallel(first)
    schedule.decompose_reduction(short, inner)
    schedule.decompose_reduction(partial, first_run)


def _finish(schedule: Schedule, block: SBlockRV, extents: list[int], machine: Machine) -> None:
    """The sum of the partial sums: small, on one thread, vectorised over the results."""
    *outer, column, part = schedule.get_loops(block)
    tile = machine.tile(extents[-1])
    column, vector = schedule.split(column, [None, tile or extents[-1]])
    schedule.reorder(*outer, column, part, vector)
    if tile is not None:
        _vectorise(schedule, vector, tile, machine)
    schedule.decompose_reduction(block, part)


def _by_lanes(
    schedule: Schedule,
    block: SBlockRV,
    extents: list[int],
    term: LoopRV,
    count: int,
    is_parallel: bool,
    machine: Machine,
) -> None:
    """Terms next to each other: each vector lane sums its own, then the lanes are added."""
    tile = machine.tile(count) if count > 4 * machine.lanes else None
    lanes = tile or machine.lanes
    _, lane = schedule.split(term, [None, lanes])
    by_lane = schedule.rfactor(lane, len(extents))
    terms = -(-count // lanes)
    *outer, term, lane = schedule.get_loops(by_lane)
    if terms > _SHORT:
        schedule.reorder(*outer, lane, term)
        _long(schedule, by_lane, [*extents, lanes], term, terms, is_parallel, machine)
        return
    if extents and is_parallel:
        rows = _fuse(schedule, schedule.get_loops(block)[:-1])
        schedule.compute_at(by_lane, rows)
        schedule.parallel(rows)
        *_, term, lane = schedule.get_loops(by_lane)
    if count % lanes == 0:
        _vectorise(schedule, lane, lanes, machine)
    schedule.decompose_reduction(by_lane, term)


def _fuse(schedule: Schedule, loops: list[LoopRV]) -> LoopRV:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _vectorise(schedule: Schedule, loop: LoopRV, extent: int, machine: Machine) -> None:
    if extent > machine.lanes and extent % machine.lanes == 0:
        unrolled, loop = schedule.split(loop, [None, machine.lanes])
        schedule.unroll(unrolled)
    if extent > 1:
        schedule.vectorize(loop)
