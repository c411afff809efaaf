"""Schedules of blocks with a reduction: windows, sums over leading axes, sums over trailing axes.

Long sums are blocked: sums of about n^(1/3) terms are added to sums of n^(1/3) of them, and so on, so that the
rounding error grows like n^(1/6) instead of n^(1/2) (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from autotm.kernels.code import Machine, Nest, divisor_near, variables_of

_SHORT = 128
"""Terms that are added one after the other."""
_UNROLLED_TERMS = 32
_UNEVEN = 8
"""How much longer than the cube root of the number of terms a level of partial sums may be."""


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
        _long(schedule, block, spatial, extents, _fuse(schedule, terms), count, is_parallel, machine)
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
    spatial: list[LoopRV],
    extents: list[int],
    term: LoopRV,
    count: int,
    is_parallel: bool,
    machine: Machine,
) -> None:
    """Many terms for each result: partial sums in levels, the outermost shared among the threads."""
    parts, runs = _blocking(count)
    part, *run, inner = schedule.split(term, [parts, runs, None] if runs > 1 else [parts, None])
    tile = machine.tile(extents[-1])
    column, vector = schedule.split(spatial[-1], [None, tile or extents[-1]])
    schedule.reorder(part, *spatial[:-1], *run, column, inner, vector)
    partial = schedule.rfactor(part, 0)
    levels = [partial]
    if runs > 1:
        levels.append(schedule.rfactor(schedule.get_loops(partial)[len(spatial)], 0))
        schedule.reverse_compute_at(partial, schedule.get_loops(levels[-1])[-3])
    innermost = levels[-1]
    if is_parallel:
        schedule.parallel(schedule.get_loops(innermost)[0])
    for level in levels:
        if tile is not None:
            _vectorise(schedule, schedule.get_loops(level)[-1], tile, machine)
    is_split = tile is not None and machine.vector(tile) < tile
    schedule.decompose_reduction(innermost, schedule.get_loops(innermost)[-3 if is_split else -2])
    if runs > 1:
        schedule.decompose_reduction(partial, schedule.get_loops(partial)[len(spatial)])
    # Last: with an uneven number of terms, TVM takes the partial sums for a reduction only until it looks again.
    _finish(schedule, block, parts, tile, machine)


def _blocking(count: int) -> tuple[int, int]:
    """(parts, runs in a part) of about count^(1/3) each; where `count` has no such divisors, (about sqrt(count), 1)."""
    wanted = count ** (1 / 3)
    parts = divisor_near(count, wanted)
    runs = divisor_near(count // parts, math.sqrt(count / parts))
    longest = max(parts, runs, count // parts // runs)
    return (parts, runs) if longest <= _UNEVEN * wanted else (2 ** round(math.log2(count) / 2), 1)


def _finish(schedule: Schedule, block: SBlockRV, parts: int, tile: int | None, machine: Machine) -> None:
    """The sum of the partial sums: small, on one thread, vectorised over the results."""
    part, *outer, vector = schedule.get_loops(block)
    if parts > _SHORT:
        inner = math.isqrt(parts)
        part, run = schedule.split(part, [parts // inner, None])
        schedule.reorder(part, *outer, run, vector)
        short = schedule.rfactor(part, 0)
        if tile is not None:
            _vectorise(schedule, schedule.get_loops(short)[-1], tile, machine)
        part, *outer, vector = schedule.get_loops(block)
    schedule.reorder(*outer, part, vector)
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
    terms = -(-count // lanes)
    term, lane = schedule.split(term, [None, lanes])
    schedule.reorder(term, lane)
    by_lane = schedule.rfactor(lane, len(extents))
    *outer, term, lane = schedule.get_loops(by_lane)
    if terms > _SHORT and count % lanes == 0:
        _long(schedule, by_lane, [*outer, lane], [*extents, lanes], term, terms, is_parallel, machine)
        return
    if count % lanes == 0:
        if extents and is_parallel:
            rows = _fuse(schedule, schedule.get_loops(block)[:-1])
            schedule.compute_at(by_lane, rows)
            schedule.parallel(rows)
            *_, lane, term = schedule.get_loops(by_lane)
            schedule.reorder(term, lane)
        _vectorise(schedule, lane, lanes, machine)
    elif extents and is_parallel:
        schedule.parallel(outer[0])
    schedule.decompose_reduction(by_lane, term)


def _fuse(schedule: Schedule, loops: list[LoopRV]) -> LoopRV:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _vectorise(schedule: Schedule, loop: LoopRV, extent: int, machine: Machine) -> None:
    lanes = machine.vector(extent)
    if lanes < extent:
        unrolled, loop = schedule.split(loop, [None, lanes])
        schedule.unroll(unrolled)
    if lanes > 1:
        schedule.vectorize(loop)
