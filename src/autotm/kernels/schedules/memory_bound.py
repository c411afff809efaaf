"""Schedules of memory-bound functions: elementwise maps, reductions, chains, elementary functions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from autotm.kernels import tir
from autotm.kernels.target import Parallelism, divisor_near
from autotm.kernels.tir import Access, Nest, read_nest, top_blocks, variables_of

# Elementary functions written out in float32 arithmetic, which vectors can do.
#
# LLVM would call the C library for each element, which takes 10 to 25 times as long (measured). Errors are at most 6
# units in the last place; infinities and NaN go through; exp is infinite from 88.4 on.

_TANH_ODD = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_EVEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_TANH_END = 7.90531
_ERF_ODD = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
    -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_EVEN = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02
)  # fmt: skip
_ERF_END = 4.0
"""Coefficients of the library Eigen, highest power first: x P(x^2) / Q(x^2), and from where on the result is 1."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""Coefficients of the library Cephes for (exp(r) - 1 - r) / r^2, where |r| <= log(2) / 2."""
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
EXP_LEAST, EXP_MOST = -87.33, 88.37
"""Beyond, exp(x) is no normal float32."""


def write_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with exp, tanh, erf and sigmoid of float32 numbers as arithmetic."""
    return tvm_ffi.structural_map(func, (ir.Call, _written))


def _written(call: ir.Call) -> tirx.Expr:
    form = WRITTEN_OUT.get(getattr(call.op, "name", ""))
    if form is None or str(call.ty) not in {"float32", "T.float32"}:
        return call
    # A name: each form reads its argument several times.
    x = tirx.Var("x", "float32")
    return tirx.Let(x, call.args[0], form(x))


def _polynomial(x: tirx.Expr, coefficients: Sequence[float], lanes: int = 1) -> tirx.Expr:
    value, *rest = (tir.constant(coefficient, lanes) for coefficient in coefficients)
    for coefficient in rest:
        value = value * x + coefficient
    return value


def exponential(x: tirx.Expr, inside: tirx.Expr, lanes: int = 1) -> tirx.Expr:
    """Return a vector's exp(x) as 2^n exp(r), x = n log 2 + r; `inside` is x as `within_exp` returns it, and gives n.

    log 2 comes in two parts, so that r is exact; |r| <= log(2) / 2. Where x is NaN, r is too.
    """
    n = tirx.floor(inside * tir.constant(1 / math.log(2), lanes) + tir.constant(0.5, lanes))
    r = x - n * tir.constant(_LOG2_HIGH, lanes) - n * tir.constant(_LOG2_LOW, lanes)
    value = _polynomial(r, _EXP, lanes) * r * r + r + tir.constant(1.0, lanes)
    suffix = "" if lanes == 1 else f"x{lanes}"
    bias, shift = (tir.splat(tirx.IntImm("int32", bits), lanes) for bits in (127, 1 << 23))
    return value * tirx.reinterpret(f"float32{suffix}", (tirx.Cast(f"int32{suffix}", n) + bias) * shift)


def within_exp(x: tirx.Expr, lanes: int = 1) -> tirx.Expr:
    """Return the nearest value whose exponential is a normal float32."""
    return tirx.max(tirx.min(x, tir.constant(EXP_MOST, lanes)), tir.constant(EXP_LEAST, lanes))


def _exp(x: tirx.Expr) -> tirx.Expr:
    inside = within_exp(x)
    below = tirx.Select(x >= tir.constant(EXP_LEAST), exponential(inside, inside), tir.constant(0.0))
    return tirx.Select(x <= tir.constant(EXP_MOST), below, x * tirx.max_value("float32"))


def _odd(odd: Sequence[float], even: Sequence[float], end: float) -> Callable[[tirx.Expr], tirx.Expr]:
    """Return an odd function that is 1 from `end` on, as x P(x^2) / Q(x^2)."""

    def form(x: tirx.Expr) -> tirx.Expr:
        value = x * _polynomial(x * x, odd) / _polynomial(x * x, even)
        above = tirx.Select(x >= tir.constant(end), tir.constant(1.0), x)
        outside = tirx.Select(x <= tir.constant(-end), tir.constant(-1.0), above)
        return tirx.Select(tirx.all(x > tir.constant(-end), x < tir.constant(end)), value, outside)

    return form


WRITTEN_OUT: dict[str, Callable[[tirx.Expr], tirx.Expr]] = {
    "tirx.exp": _exp,
    "tirx.sigmoid": lambda x: tir.constant(1.0) / (tir.constant(1.0) + _exp(tir.constant(0.0) - x)),
    "tirx.tanh": _odd(_TANH_ODD, _TANH_EVEN, _TANH_END),
    "tirx.erf": _odd(_ERF_ODD, _ERF_EVEN, _ERF_END),
}


# Results that another one is made of, element by element, in one pass: an update's states and its parameter, say.


def merge_chains(schedule: Schedule) -> dict[str, list[Nest]]:
    """Give neighbouring results with equal loops the same ones where the last of them reads all others.

    Returns the nests that share loops, by the name of the first block.
    """
    outputs = list(schedule.mod["main"].params)

    def is_result(nest: Nest) -> bool:
        is_output = any(nest.store.buffer.same_as(output) for output in outputs)
        return is_output and not nest.reduction and tir.is_own(nest.store.indices, nest.variables)

    def is_read(part: Nest, nest: Nest) -> bool:
        """Return whether `nest` reads what `part` writes, at its own element only."""
        reads = [access for access in nest.loads if access.buffer.same_as(part.store.buffer)]
        return bool(reads) and all(tir.is_own(access.indices, nest.variables) for access in reads)

    chains: dict[str, list[Nest]] = {}
    run: list[Nest] = []
    for nest in [read_nest(schedule, block) for block in top_blocks(schedule)]:
        if nest is None or not is_result(nest):
            run = []
            continue
        parts = [other for other in run if other.extents == nest.extents and is_read(other, nest)]
        if parts and parts == run[-len(parts) :]:
            chain = [*parts, nest]
            schedule.merge(*(schedule.get_loops(schedule.get_sblock(each.name))[-1] for each in chain))
            chains[chain[0].name] = chain
            run = []
        else:
            run.append(nest)
    return chains


# The schedule of a block without reduction: contiguous axes fused, vectorised, the rest shared among threads.

_CHUNK_ELEMENTS = 4096
"""A thread's unit of work on a contiguous axis: long enough for streaming, short enough to share evenly."""
_UNROLLED_VECTORS = 4  # Vectors of a contiguous axis in one pass of its loop, at most.
_LEAST_TURNED = 8  # Elements of both axes from which tiles are made.


def schedule_elementwise(schedule: Schedule, block: SBlockRV, nests: Sequence[Nest], machine: Parallelism) -> None:
    """Schedule an elementwise, broadcast or injective block in place; `nests` are of all blocks in its loops."""
    nest = nests[0]
    if len(nests) == 1 and (turned := _turned_axis(nest)) is not None:
        _schedule_turned(schedule, block, nest, turned, machine)
        return
    start = max(map(contiguous_from, nests))
    loops = schedule.get_loops(block)
    inner_extent = math.prod(nest.extents[start:])
    inner = _fuse(schedule, list(loops[start:]))
    outer = list(loops[:start])
    is_parallel = machine.is_parallel({buffer: size for each in nests for buffer, size in each.touched.items()})
    if is_parallel and math.prod(nest.extents[:start]) < 8 * machine.threads:
        chunks = _chunks(inner_extent, machine)
        if chunks > 1:
            chunk, inner = schedule.split(inner, [chunks, None])
            outer.append(chunk)
            inner_extent //= chunks
    if outer and is_parallel:
        schedule.parallel(_fuse(schedule, outer))
    _vectorise(schedule, inner, inner_extent, machine)


def _turned_axis(nest: Nest) -> int | None:
    """Return the axis, not the result's last, along which something as large is contiguous; None without one."""
    last = len(nest.extents) - 1
    for access in nest.loads:
        if not access.indices or tir.elements(access.buffer) < nest.iterations:
            continue
        for axis in range(last):
            is_last_here = access.indices[-1].same_as(nest.variables[axis])
            if is_last_here and min(nest.extents[axis], nest.extents[last]) >= _LEAST_TURNED:
                return axis
    return None


def _schedule_turned(schedule: Schedule, block: SBlockRV, nest: Nest, turned: int, machine: Parallelism) -> None:
    """Tile the last axis and the one contiguous elsewhere in squares, so that each cache line met is used up."""
    loops = list(schedule.get_loops(block))
    side = machine.lanes
    tiles, inner = [], []
    for axis in (turned, len(loops) - 1):
        extent = nest.extents[axis]
        size = next((size for size in (side, side // 2) if extent % size == 0), side)
        outer, within = schedule.split(loops[axis], [None, size])
        tiles.append(outer)
        inner.append(within)
    others = [loop for axis, loop in enumerate(loops[:-1]) if axis != turned]
    schedule.reorder(*others, *tiles, *inner)
    if machine.is_parallel(nest.touched):
        schedule.parallel(_fuse(schedule, [*others, *tiles]))
    schedule.vectorize(inner[1])


def contiguous_from(nest: Nest) -> int:
    """Return the first axis of the longest run of last axes that each access walks as one, or not at all."""

    def is_contiguous(start: int) -> bool:
        run = nest.variables[start:]
        walked = all(_walks(access, run, nest.extents[start:]) for access in nest.accesses)
        return walked and not nest.free_uses & set(run)

    start = len(nest.extents) - 1
    while start > 0 and is_contiguous(start - 1):
        start -= 1
    return start


def _walks(access: Access, run: tuple[tirx.Var, ...], extents: tuple[int, ...]) -> bool:
    used = [variables_of(index) & set(run) for index in access.indices]
    if not any(used):
        return True
    if len(access.indices) < len(run) or any(used[: -len(run)]):
        return False
    last = access.indices[-len(run) :]
    exact = (
        tir.is_own(last[1:], run[1:])
        and tir.extents(access.buffer)[len(access.indices) - len(run) + 1 :] == extents[1:]
    )
    return exact and used[-len(run)] == {run[0]} and _is_shifted(last[0], run[0])


def _is_shifted(index: tirx.Expr, variable: tirx.Var) -> bool:
    """Return whether an index is the variable plus something that does not depend on it."""
    if index.same_as(variable):
        return True
    if isinstance(index, tirx.Add):
        left, right = variable in variables_of(index.a), variable in variables_of(index.b)
        return left != right and _is_shifted(index.a if left else index.b, variable)
    if isinstance(index, tirx.Sub):
        return variable not in variables_of(index.b) and _is_shifted(index.a, variable)
    return False


def _fuse(schedule: Schedule, loops: list[LoopRV]) -> LoopRV:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _chunks(extent: int, machine: Parallelism) -> int:
    """Return equal parts to cut a contiguous axis into: a divisor that leaves whole vectors if there is one."""
    wanted = max(machine.threads, extent // _CHUNK_ELEMENTS)
    dividing = [count for count in range(wanted, 0, -1) if extent % count == 0]
    whole = (count for count in dividing if count >= machine.threads and extent % (count * machine.lanes) == 0)
    return next(whole, dividing[0])


def _vectorise(schedule: Schedule, loop: LoopRV, extent: int, machine: Parallelism) -> None:
    lanes = machine.lanes
    if extent < lanes:
        schedule.vectorize(loop)
        return
    whole, rest = divmod(extent, lanes)
    group = 1 if rest else next(count for count in range(min(_UNROLLED_VECTORS, whole), 0, -1) if whole % count == 0)
    outer, unrolled, vector = schedule.split(loop, [None, group, lanes])
    schedule.unroll(unrolled)
    schedule.vectorize(vector)
    if rest:
        # The loop is cut in two, so that only the last vector asks whether it is still inside.
        schedule.annotate(outer, "pragma_loop_partition_hint", True)


# Schedules of blocks with a reduction: windows, sums over leading axes, sums over trailing axes.
#
# Long sums are blocked: sums of about n^(1/3) terms are added to sums of n^(1/3) of them, and so on, so that the
# rounding error grows like n^(1/6) instead of n^(1/2) (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).

_SHORT = 128
"""Terms that are added one after the other."""
_UNROLLED_TERMS = 32  # So many terms of a result, at most, are written out.
_UNEVEN = 8
"""How much longer than the cube root of the number of terms a level of partial sums may be."""


def schedule_reduction(
    schedule: Schedule, block: SBlockRV, nest: Nest, machine: Parallelism, epilogue: SBlockRV | None
) -> None:
    """Schedule a reduction in place; `epilogue` is an elementwise block over the same axes to run on each tile."""
    loops = schedule.get_loops(block)
    spatial = [loops[axis] for axis in nest.spatial]
    terms = [loops[axis] for axis in nest.reduction]
    schedule.reorder(*spatial, *terms)
    count = math.prod(nest.extents[axis] for axis in nest.reduction)
    extents = [nest.extents[axis] for axis in nest.spatial]
    # Whether the terms of one sum lie next to each other in the largest operand.
    largest = max(nest.loads, key=lambda access: tir.elements(access.buffer)).indices
    is_row = bool(largest) and nest.variables[nest.reduction[-1]] in variables_of(largest[-1])
    sums = _Sums(schedule, machine, machine.is_parallel(nest.touched))
    if is_row and count >= machine.lanes:
        sums.by_lanes(block, extents, _fuse(schedule, terms), count)
    elif count > _SHORT and extents:
        sums.long(block, spatial, extents, _fuse(schedule, terms), count)
    elif extents:
        writer = epilogue if epilogue is not None else schedule.cache_write(block, 0, "global")
        sums.short(block, writer, spatial, extents, terms)


@dataclass(frozen=True)
class _Sums:
    """Ways to schedule a reduction: `spatial` are the loops over its results, of `extents`; `count` terms each."""

    schedule: Schedule
    machine: Parallelism
    is_parallel: bool

    def short(
        self, block: SBlockRV, writer: SBlockRV, spatial: list[LoopRV], extents: list[int], terms: list[LoopRV]
    ) -> None:
        """Schedule results of few terms: keep a tile of results in registers while all terms are added."""
        schedule, tile = self.schedule, self.machine.tile(extents[-1])
        count = math.prod(int(schedule.get(loop).extent) for loop in terms)
        column, inner = schedule.split(spatial[-1], [None, tile or extents[-1]])
        schedule.reorder(*spatial[:-1], column, *terms, inner)
        schedule.reverse_compute_at(writer, column)
        self._vectorise(inner, tile)
        self._vectorise(schedule.get_loops(writer)[-1], tile)
        if self.is_parallel:
            # Share as few outer loops as give each thread several pieces.
            pieces = [math.prod(extents[: axis + 1]) for axis in range(len(extents) - 1)]
            shared = next(
                (axis + 1 for axis, many in enumerate(pieces) if many >= 8 * self.machine.threads), len(extents)
            )
            schedule.parallel(_fuse(schedule, [*spatial[:-1], column][:shared]))
        schedule.decompose_reduction(block, terms[0])
        if tile is not None and count <= _UNROLLED_TERMS:
            for loop in terms:
                schedule.unroll(loop)

    def long(self, block: SBlockRV, spatial: list[LoopRV], extents: list[int], term: LoopRV, count: int) -> None:
        """Schedule results of many terms: partial sums in levels, the outermost shared among the threads."""
        schedule, tile = self.schedule, self.machine.tile(extents[-1])
        parts, runs = _blocking(count)
        part, *run, inner = schedule.split(term, [parts, runs, None] if runs > 1 else [parts, None])
        column, vector = schedule.split(spatial[-1], [None, tile or extents[-1]])
        schedule.reorder(part, *spatial[:-1], *run, column, inner, vector)
        partial = schedule.rfactor(part, 0)
        levels = [partial]
        if runs > 1:
            levels.append(schedule.rfactor(schedule.get_loops(partial)[len(spatial)], 0))
            schedule.reverse_compute_at(partial, schedule.get_loops(levels[-1])[-3])
        innermost = levels[-1]
        if self.is_parallel:
            schedule.parallel(schedule.get_loops(innermost)[0])
        for level in levels:
            self._vectorise(schedule.get_loops(level)[-1], tile)
        is_split = tile is not None and self.machine.vector(tile) < tile
        schedule.decompose_reduction(innermost, schedule.get_loops(innermost)[-3 if is_split else -2])
        if runs > 1:
            schedule.decompose_reduction(partial, schedule.get_loops(partial)[len(spatial)])
        # Last, as with an uneven number of terms TVM takes the partial sums for a reduction only until it looks again.
        self._finish(block, parts, tile)

    def by_lanes(self, block: SBlockRV, extents: list[int], term: LoopRV, count: int) -> None:
        """Schedule neighbouring terms: each vector lane sums its own, then the lanes are added."""
        schedule, machine = self.schedule, self.machine
        lanes = (machine.tile(count) if count > 4 * machine.lanes else None) or machine.lanes
        terms = -(-count // lanes)
        term, lane = schedule.split(term, [None, lanes])
        schedule.reorder(term, lane)
        by_lane = schedule.rfactor(lane, len(extents))
        *outer, term, lane = schedule.get_loops(by_lane)
        if terms > _SHORT and count % lanes == 0:
            self.long(by_lane, [*outer, lane], [*extents, lanes], term, terms)
            return
        if count % lanes == 0:
            if extents and self.is_parallel:
                rows = _fuse(schedule, schedule.get_loops(block)[:-1])
                schedule.compute_at(by_lane, rows)
                schedule.parallel(rows)
                *_, lane, term = schedule.get_loops(by_lane)
                schedule.reorder(term, lane)
            self._vectorise(lane, lanes)
        elif extents and self.is_parallel:
            schedule.parallel(outer[0])
        schedule.decompose_reduction(by_lane, term)

    def _finish(self, block: SBlockRV, parts: int, tile: int | None) -> None:
        """Schedule the sum of the partial sums: small, on one thread, vectorised over the results."""
        schedule = self.schedule
        part, *outer, vector = schedule.get_loops(block)
        if parts > _SHORT:
            part, run = schedule.split(part, [parts // math.isqrt(parts), None])
            schedule.reorder(part, *outer, run, vector)
            self._vectorise(schedule.get_loops(schedule.rfactor(part, 0))[-1], tile)
            part, *outer, vector = schedule.get_loops(block)
        schedule.reorder(*outer, part, vector)
        self._vectorise(vector, tile)
        schedule.decompose_reduction(block, part)

    def _vectorise(self, loop: LoopRV, extent: int | None) -> None:
        """Unroll whole vectors of a loop of that extent; do nothing without an extent."""
        lanes = 1 if extent is None else self.machine.vector(extent)
        if extent is not None and lanes < extent:
            unrolled, loop = self.schedule.split(loop, [None, lanes])
            self.schedule.unroll(unrolled)
        if lanes > 1:
            self.schedule.vectorize(loop)


def _blocking(count: int) -> tuple[int, int]:
    """Return (parts, runs in a part) of about count^(1/3) each; without such divisors, (about sqrt(count), 1)."""
    wanted = count ** (1 / 3)
    parts = divisor_near(count, wanted)
    runs = divisor_near(count // parts, math.sqrt(count / parts))
    longest = max(parts, runs, count // parts // runs)
    return (parts, runs) if longest <= _UNEVEN * wanted else (2 ** round(math.log2(count) / 2), 1)


# The schedule of any memory-bound function: inline what can be, then each remaining block by what it does.


def schedule_blocks(schedule: Schedule, machine: Parallelism) -> None:
    """Schedule every block of the function that a plain loop nest surrounds, in place."""
    inline_intermediates(schedule)
    surround_scalars(schedule)
    chains = merge_chains(schedule)
    done = {nest.name for chain in chains.values() for nest in chain[1:]}
    for name in [schedule.get(block).name_hint for block in top_blocks(schedule)]:
        if name in done:
            continue
        block = schedule.get_sblock(name)
        nest = read_nest(schedule, block)
        if nest is None:
            continue
        if nest.reduction:
            epilogue = _epilogue(schedule, block, nest)
            if epilogue is not None:
                done.add(schedule.get(epilogue).name_hint)
            schedule_reduction(schedule, block, nest, machine, epilogue)
        else:
            schedule_elementwise(schedule, block, chains.get(name, [nest]), machine)


def surround_scalars(schedule: Schedule) -> None:
    """Put each block without loops into one of a single pass: `rfactor` loses track of a bare block next to its own."""
    for block in top_blocks(schedule):
        if not schedule.get_loops(block):
            schedule.add_unit_loop(block)


def inline_intermediates(schedule: Schedule) -> None:
    """Inline elementwise blocks into their consumers, and into their producers where that is impossible.

    A transcendental function is not inlined where it would be evaluated more than once per element.
    """

    def is_costly(block: SBlockRV, nest: Nest) -> bool:
        nests = [read_nest(schedule, consumer) for consumer in schedule.get_consumers(block)] if nest.has_call else []
        return len(nests) > 1 or any(other is None or other.iterations > nest.iterations for other in nests)

    for block in top_blocks(schedule):
        nest = read_nest(schedule, block)
        if nest is not None and not nest.reduction and not is_costly(block, nest):
            with contextlib.suppress(ScheduleError):
                schedule.compute_inline(block)


def _epilogue(schedule: Schedule, block: SBlockRV, nest: Nest) -> SBlockRV | None:
    """Return the only consumer, if it runs elementwise over the axes of the reduction's result."""
    consumers = schedule.get_consumers(block)
    if len(consumers) != 1 or len(schedule.get_producers(consumers[0])) != 1:
        return None
    other = read_nest(schedule, consumers[0])
    spatial = tuple(nest.extents[axis] for axis in nest.spatial)
    if other is None or other.reduction or other.extents != spatial:
        return None
    own = [access for access in other.loads if access.buffer.same_as(nest.store.buffer)]
    straight = all(tir.is_own(access.indices, other.variables) for access in (*own, other.store))
    return consumers[0] if straight else None
