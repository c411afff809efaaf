"""Plans whose tensors all lie in one pool: their addresses, and what a cache or slow pages cost, re-derived."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping

import numpy as np

from autotm.check.fault import Fault, require
from autotm.model.cache import CachedPool, PagedPool
from autotm.model.graph import ALIGNMENT_BYTES, ChosenGraph, Kernel, configuration, slow_traffic
from autotm.model.plan import Plan
from autotm.model.program import KernelStep, Program

_SMALLEST_UNIT_BYTES = 4096  # a page; no cache of slow memory or page has less


def _offsets(graph: ChosenGraph, plan: Plan, pool: CachedPool | PagedPool, fault: Fault) -> dict[str, int]:
    """Return the offset of each tensor, aligned and inside the pool.

    Raises:
        FaultError: the first broken rule; `fault` where stays and offsets are not as many.
    """
    require(len(pool.offsets) == len(plan.stays), fault, f"{len(pool.offsets)} offsets, {len(plan.stays)} stays")
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, pool.offsets, strict=True)}
    for tensor, offset in offsets.items():
        end = offset + graph.by_name[tensor].allocated_bytes
        require(offset % ALIGNMENT_BYTES == 0, Fault.ALIGNMENT, f"'{tensor}' at offset {offset}")
        require(offset >= 0 and end <= pool.size_bytes, Fault.POOL, f"'{tensor}': [{offset}, {end})")
    return offsets


def _check_units(plan: Plan, pool_bytes: int, unit_bytes: int, count: int, fault: Fault, units: str) -> None:
    """Check that blocks or pages are powers of two of at least 4096 bytes, and as many are fast as the limit allows."""
    whole = unit_bytes >= _SMALLEST_UNIT_BYTES and unit_bytes & (unit_bytes - 1) == 0
    require(whole, fault, f"{units} of {unit_bytes} bytes are no power of two of at least {_SMALLEST_UNIT_BYTES}")
    wanted = -(-pool_bytes // unit_bytes) if plan.limit.is_unlimited else plan.dram_limit_bytes // unit_bytes
    require(count == wanted, Fault.LIMIT, f"{count} {units} are allowed, not {wanted}")


def check_one_pool_program(graph: ChosenGraph, plan: Plan, program: Program) -> None:
    """Check that a program of one pool states the traffic of the plan's pool and uses its addresses.

    Raises:
        FaultError: the first broken rule.
    """
    cached = plan.cached.traffic_bytes if plan.cached else ()
    require(program.cache_traffic_bytes == cached, Fault.CACHE, "the program's traffic is not the plan's")
    paged = tuple(plan.paged.traffic(graph)) if plan.paged else ()
    require(program.paged_traffic == paged, Fault.PAGES, "the program's traffic is not the plan's")
    if (pool := plan.one_pool) is None:
        return
    same = (program.fast_bytes, program.slow_bytes) == (0, pool.size_bytes)
    fault = Fault.CACHE if plan.cached else Fault.PAGES
    require(same, fault, f"pools of {program.fast_bytes} and {program.slow_bytes} bytes, not one of the plan's")
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, pool.offsets, strict=True)}
    for step in program.steps:
        assert isinstance(step, KernelStep), "the steps are the plan's, which has no moves"
        operands = graph.kernels[step.kernel].operands
        for operand, address in zip(operands, step.addresses, strict=False):
            there = address.offset == offsets.get(operand.tensor)
            require(there, Fault.ADDRESS, f"kernel {step.kernel}: '{operand.tensor}' is not where the plan has it")


# What a step misses in the cache before slow memory, re-derived by stretches of the cache instead of blocks.

_MOST_BLOCKS = 1 << 24  # as many as `model/cache.py` lets a pool have


def check_cached(graph: ChosenGraph, plan: Plan, pool: CachedPool) -> None:
    """Vouch for the addresses, the sizes of cache and blocks, and what every kernel hits and misses.

    `graph` is the step with the implementations that run.

    Raises:
        FaultError: the first broken rule.
    """
    offsets = _offsets(graph, plan, pool, Fault.CACHE)
    needless = pool.block_bytes > _SMALLEST_UNIT_BYTES and pool.size_bytes <= pool.block_bytes // 2 * _MOST_BLOCKS
    require(not needless, Fault.CACHE, f"blocks of {pool.block_bytes} bytes for a pool of {pool.size_bytes}")
    _check_units(plan, pool.size_bytes, pool.block_bytes, pool.cache_blocks, Fault.CACHE, "blocks")
    derived = list(_counts(graph, offsets, pool))
    stated = list(zip(pool.hits, pool.clean_misses, pool.dirty_misses, strict=False))
    require(len(stated) == len(derived), Fault.CACHE, f"{len(stated)} counts for {len(derived)} kernels")
    for index, (right, counts) in enumerate(zip(derived, stated, strict=True)):
        require(right == counts, Fault.CACHE, f"kernel {index}: hits, clean, dirty are {right}, plan says {counts}")


_Stretch = tuple[int, int, int, bool]
"""Sets [start, end) of the cache, all with blocks of one round of the pool, its number, and whether they are dirty."""


def _counts(graph: ChosenGraph, offsets: Mapping[str, int], pool: CachedPool) -> Iterator[tuple[int, int, int]]:
    """Yield hits, clean and dirty misses of each kernel in the second of two steps."""
    sets = pool.cache_blocks
    cache = [(0, sets, -1, False)]  # An empty cache: no block has round -1.
    for number in range(2):
        for kernel in graph.kernels:
            total = np.zeros(3, np.int64)
            for start, end, is_write in _runs(graph, kernel, offsets, pool.block_bytes):
                if not sets:
                    total[2 if is_write else 1] += end - start
                for turn in range(start // sets, (end - 1) // sets + 1) if sets else ():
                    low, high = max(start - turn * sets, 0), min(end - turn * sets, sets)
                    total += _touch(cache, low, high, turn, is_write=is_write)
            if number:
                hits, clean, dirty = total.tolist()
                yield hits, clean, dirty


def _touch(cache: list[_Stretch], start: int, end: int, turn: int, *, is_write: bool) -> list[int]:
    """Fill sets [start, end) of the cache, which is all its stretches in order; return hits, clean and dirty misses."""
    first = bisect_right(cache, start, key=lambda stretch: stretch[0]) - 1
    last, counts, filled = first, [0, 0, 0], []
    while last < len(cache) and cache[last][0] < end:
        old_start, old_end, old_turn, was_dirty = cache[last]
        low, high = max(old_start, start), min(old_end, end)
        is_hit = old_turn == turn
        counts[0 if is_hit else 2 if was_dirty else 1] += high - low
        if old_start < low:
            filled.append((old_start, low, old_turn, was_dirty))
        is_dirty = is_write or (is_hit and was_dirty)
        if filled and filled[-1][2:] == (turn, is_dirty):  # joined with the one before
            low = filled.pop()[0]
        filled.append((low, high, turn, is_dirty))
        if high < old_end:
            filled.append((high, old_end, old_turn, was_dirty))
        last += 1
    cache[first:last] = filled
    return counts


def _runs(
    graph: ChosenGraph, kernel: Kernel, offsets: Mapping[str, int], block_bytes: int
) -> Iterator[tuple[int, int, bool]]:
    """Yield blocks [start, end) that a kernel passes over, tensor by tensor, and whether it writes there."""
    for tensor in dict.fromkeys(operand.tensor for operand in kernel.operands):
        if not graph.by_name[tensor].is_movable:
            continue
        reads, writes = slow_traffic(graph, kernel, configuration(graph, kernel, {tensor}))
        size_bytes, touched_bytes = graph.by_name[tensor].size_bytes, max(reads + writes)
        first, end = offsets[tensor] // block_bytes, math.ceil((offsets[tensor] + size_bytes) / block_bytes)
        if touched_bytes >= size_bytes:
            yield first, end, bool(writes)
            continue
        touched = min(end - first, math.ceil(touched_bytes / block_bytes))
        for number in range(touched):
            block = first + number * (end - first) // touched
            yield block, block + 1, bool(writes)


# What a step finds in slow pages: bounds for every policy, and for pages that never move the placement, re-derived.
#
# Pages that move are a simulation over many steps, which is not repeated here: its numbers must keep the limit, and no
# kernel may find more of its operands in fast memory than that holds.

_MOVING = frozenset({"linux-balancing"})


def check_paged(graph: ChosenGraph, plan: Plan, pool: PagedPool) -> None:
    """Vouch for addresses, pages, the limit, and what every kernel finds slow.

    `graph` is the step with the implementations that run.

    Raises:
        FaultError: the first broken rule.
    """
    offsets = _offsets(graph, plan, pool, Fault.PAGES)
    _check_units(plan, pool.size_bytes, pool.page_bytes, pool.fast_pages, Fault.PAGES, "pages")
    fits = pool.most_fast_pages <= pool.fast_pages
    require(fits, Fault.LIMIT, f"{pool.most_fast_pages} pages were fast, {pool.fast_pages} are allowed")
    lengths = {len(each) for each in (pool.slow_bytes, pool.promoted_bytes, pool.demoted_bytes)}
    require(lengths == {len(graph.kernels)}, Fault.PAGES, f"{lengths} numbers for {len(graph.kernels)} kernels")
    for index, (kernel, slow_bytes) in enumerate(zip(graph.kernels, pool.slow_bytes, strict=True)):
        tensors = tuple(graph.slots_of(kernel))
        require(len(tensors) == len(slow_bytes), Fault.PAGES, f"kernel {index}: {len(slow_bytes)} tensors")
        sizes = [graph.by_name[name].size_bytes for name in tensors]
        inside = all(0 <= slow <= size for slow, size in zip(slow_bytes, sizes, strict=True))
        require(inside, Fault.PAGES, f"kernel {index}: {slow_bytes} slow bytes of tensors of {sizes}")
        # Means of moving pages are rounded down, by less than a byte a tensor.
        fast_bytes = sum(sizes) - sum(slow_bytes)
        holds = fast_bytes <= pool.fast_bytes + len(sizes)
        require(holds, Fault.LIMIT, f"kernel {index}: {fast_bytes} fast bytes in {pool.fast_bytes}")
    if plan.optimizer not in _MOVING:
        _check_still(graph, plan, pool, offsets)


def _check_still(graph: ChosenGraph, plan: Plan, pool: PagedPool, offsets: Mapping[str, int]) -> None:
    """Place every page again, one after the other, and compare slow bytes, counted page by page, with the plan."""
    still = not any(pool.promoted_bytes) and not any(pool.demoted_bytes)
    require(still, Fault.PAGES, f"'{plan.optimizer}' moves no pages, the plan does")
    to_fast, to_slow = pool.weights or (1, 0)
    dealt = not plan.limit.is_unlimited
    size, free_pages = pool.page_bytes, pool.fast_pages
    fast: dict[int, bool] = {}
    filled = [tensor.name for tensor in graph.movable if tensor.producer is None]
    spans = [(offsets[name], graph.by_name[name].size_bytes) for name in filled]
    for kernel in graph.kernels:
        spans += [(offsets[name], graph.by_name[name].size_bytes) for name in graph.slots_of(kernel)]
    for start, length in spans:
        for page in range(start // size, -(-(start + length) // size)):
            if page not in fast:
                fast[page] = free_pages > 0 and (not dealt or page % (to_fast + to_slow) < to_fast)
                free_pages -= fast[page]
    for index, (kernel, slow_bytes) in enumerate(zip(graph.kernels, pool.slow_bytes, strict=True)):
        for name, stated in zip(graph.slots_of(kernel), slow_bytes, strict=True):
            start, end = offsets[name], offsets[name] + graph.by_name[name].size_bytes
            derived = sum(
                min(end, (page + 1) * size) - max(start, page * size)
                for page in range(start // size, -(-end // size))
                if not fast[page]
            )
            where = f"kernel {index}: '{name}' has {derived} slow bytes, plan: {stated}"
            require(derived == stated, Fault.PAGES, where)
