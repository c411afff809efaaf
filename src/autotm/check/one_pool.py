"""Plans whose tensors all lie in one pool: their addresses, and what a cache or slow pages cost, re-derived."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autotm.check.fault import Fault, require
from autotm.model.cache import CachedPool, PagedPool
from autotm.model.graph import ALIGNMENT_BYTES, ChosenGraph, Kernel, configuration, slow_traffic
from autotm.model.plan import Plan
from autotm.model.program import KernelStep, Program

# Addresses of a plan all of whose tensors lie in one pool: behind a cache, or in pages that Linux places.


def check_one_pool(graph: ChosenGraph, plan: Plan, pool: CachedPool | PagedPool, fault: Fault) -> dict[str, int]:
    """The offset of each tensor, aligned and inside the pool.

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


def check_one_pool_program(
    graph: ChosenGraph, plan: Plan, program: Program, pool: CachedPool | PagedPool, fault: Fault, what: str
) -> None:
    """The program has the plan's pool, and uses the addresses that `what` belongs to.

    Raises:
        FaultError: the first broken rule.
    """
    same = (program.fast_bytes, program.slow_bytes) == (0, pool.size_bytes)
    require(same, fault, f"pools of {program.fast_bytes} and {program.slow_bytes} bytes, not one of the plan's")
    offsets = {stay.tensor: offset for stay, offset in zip(plan.stays, pool.offsets, strict=True)}
    for step in program.steps:
        assert isinstance(step, KernelStep), "the steps are the plan's, which has no moves"
        operands = graph.kernels[step.kernel].operands
        for operand, address in zip(operands, step.addresses, strict=False):
            there = address.offset == offsets.get(operand.tensor)
            require(there, Fault.ADDRESS, f"kernel {step.kernel}: '{operand.tensor}' is not where its {what}")


# What a step misses in the cache before slow memory, re-derived by stretches of the cache instead of blocks.

_SMALLEST_BLOCK_BYTES = 4096
_MOST_BLOCKS = 1 << 24


def check_cached(graph: ChosenGraph, plan: Plan, pool: CachedPool) -> None:
    """Vouch for the addresses, the sizes of cache and blocks, and what every kernel hits and misses.

    `graph` is the step with the implementations that run.

    Raises:
        FaultError: the first broken rule.
    """
    offsets = check_one_pool(graph, plan, pool, Fault.CACHE)
    _check_block_sizes(plan, pool)
    derived = list(_counts(graph, offsets, pool))
    stated = list(zip(pool.hits, pool.clean_misses, pool.dirty_misses, strict=False))
    require(len(stated) == len(derived), Fault.CACHE, f"{len(stated)} counts for {len(derived)} kernels")
    for index, (wanted, counts) in enumerate(zip(derived, stated, strict=True)):
        require(wanted == counts, Fault.CACHE, f"kernel {index}: hits, clean, dirty are {wanted}, plan says {counts}")


def check_cached_program(graph: ChosenGraph, plan: Plan, program: Program) -> None:
    """The program uses the addresses that the counts belong to, and is charged for them.

    Raises:
        FaultError: the first broken rule.
    """
    traffic = plan.cached.traffic_bytes if plan.cached else ()
    require(program.cache_traffic_bytes == traffic, Fault.CACHE, "the program's traffic is not the plan's")
    if plan.cached is None:
        return
    check_one_pool_program(graph, plan, program, plan.cached, Fault.CACHE, "misses were counted")


def _check_block_sizes(plan: Plan, pool: CachedPool) -> None:
    blocks = pool.block_bytes // _SMALLEST_BLOCK_BYTES
    whole = pool.block_bytes % _SMALLEST_BLOCK_BYTES == 0 and blocks > 0 and blocks & (blocks - 1) == 0
    require(whole, Fault.CACHE, f"blocks of {pool.block_bytes} bytes are no power of two of at least 4096")
    needless = blocks > 1 and pool.size_bytes <= pool.block_bytes // 2 * _MOST_BLOCKS
    require(not needless, Fault.CACHE, f"blocks of {pool.block_bytes} bytes for a pool of {pool.size_bytes}")
    if plan.limit.is_unlimited:
        wanted = math.ceil(pool.size_bytes / pool.block_bytes)
    else:
        wanted = plan.dram_limit_bytes // pool.block_bytes
    require(pool.cache_blocks == wanted, Fault.LIMIT, f"a cache of {pool.cache_blocks} blocks, not {wanted}")


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Sets [start, end) of the cache, all with blocks of one round of the pool."""

    start: int
    end: int
    turn: int
    is_dirty: bool


class _Stretches:
    """The whole cache, as stretches in order; it begins empty, which is a round that no block is of."""

    def __init__(self, sets: int) -> None:
        self._stretches = [_Stretch(0, sets, -1, is_dirty=False)]

    def touch(self, start: int, end: int, turn: int, *, is_write: bool) -> tuple[int, int, int]:
        """Fill sets [start, end); returns hits, clean and dirty misses."""
        first = bisect_right(self._stretches, start, key=lambda stretch: stretch.start) - 1
        last, counts, filled = first, [0, 0, 0], []
        while last < len(self._stretches) and self._stretches[last].start < end:
            old = self._stretches[last]
            low, high = max(old.start, start), min(old.end, end)
            hit = old.turn == turn
            counts[0 if hit else 2 if old.is_dirty else 1] += high - low
            if old.start < low:
                filled.append(_Stretch(old.start, low, old.turn, old.is_dirty))
            is_dirty = is_write or (hit and old.is_dirty)
            if filled and (filled[-1].turn, filled[-1].is_dirty) == (turn, is_dirty):  # joined with the one before
                low = filled.pop().start
            filled.append(_Stretch(low, high, turn, is_dirty))
            if high < old.end:
                filled.append(_Stretch(high, old.end, old.turn, old.is_dirty))
            last += 1
        self._stretches[first:last] = filled
        return counts[0], counts[1], counts[2]


def _counts(graph: ChosenGraph, offsets: Mapping[str, int], pool: CachedPool) -> Iterator[tuple[int, int, int]]:
    """Hits, clean and dirty misses of each kernel in the second of two steps."""
    cache = _Stretches(pool.cache_blocks)
    for number in range(2):
        for kernel in graph.kernels:
            total = np.zeros(3, np.int64)
            for start, end, is_write in _runs(graph, kernel, offsets, pool.block_bytes):
                for counts in _touched(cache, start, end, pool.cache_blocks, is_write=is_write):
                    total += counts
            if number:
                hits, clean, dirty = total.tolist()
                yield hits, clean, dirty


def _touched(cache: _Stretches, start: int, end: int, sets: int, *, is_write: bool) -> Iterator[tuple[int, int, int]]:
    """Touch blocks [start, end), one round of the cache after the other."""
    if not sets:
        yield (0, 0, end - start) if is_write else (0, end - start, 0)
        return
    for turn in range(start // sets, (end - 1) // sets + 1):
        low, high = max(start, turn * sets), min(end, (turn + 1) * sets)
        yield cache.touch(low - turn * sets, high - turn * sets, turn, is_write=is_write)


def _runs(
    graph: ChosenGraph, kernel: Kernel, offsets: Mapping[str, int], block_bytes: int
) -> Iterator[tuple[int, int, bool]]:
    """Blocks [start, end) that a kernel passes over, tensor by tensor, and whether it writes there."""
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

_SMALLEST_PAGE_BYTES = 4096
_MOVING = frozenset({"linux-balancing"})


def check_paged(graph: ChosenGraph, plan: Plan, pool: PagedPool) -> None:
    """Vouch for addresses, pages, the limit, and what every kernel finds slow.

    `graph` is the step with the implementations that run.

    Raises:
        FaultError: the first broken rule.
    """
    offsets = check_one_pool(graph, plan, pool, Fault.PAGES)
    _check_page_sizes(plan, pool)
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


def check_paged_program(graph: ChosenGraph, plan: Plan, program: Program) -> None:
    """The program uses the addresses that the pages belong to, and is charged for them.

    Raises:
        FaultError: the first broken rule.
    """
    if plan.paged is None:
        require(not program.paged_traffic, Fault.PAGES, "the program is charged for pages, the plan has none")
        return
    wanted = tuple(plan.paged.traffic(graph))
    require(program.paged_traffic == wanted, Fault.PAGES, "the program's traffic is not the plan's")
    check_one_pool_program(graph, plan, program, plan.paged, Fault.PAGES, "pages were")


def _check_page_sizes(plan: Plan, pool: PagedPool) -> None:
    times = pool.page_bytes // _SMALLEST_PAGE_BYTES
    whole = pool.page_bytes % _SMALLEST_PAGE_BYTES == 0 and times > 0 and times & (times - 1) == 0
    require(whole, Fault.PAGES, f"pages of {pool.page_bytes} bytes are no power of two of at least 4096")
    count = -(-pool.size_bytes // pool.page_bytes)
    wanted = count if plan.limit.is_unlimited else plan.dram_limit_bytes // pool.page_bytes
    require(pool.fast_pages == wanted, Fault.LIMIT, f"{pool.fast_pages} pages are allowed, not {wanted}")
    fits = pool.most_fast_pages <= pool.fast_pages
    require(fits, Fault.LIMIT, f"{pool.most_fast_pages} pages were fast, {pool.fast_pages} are allowed")


def _check_still(graph: ChosenGraph, plan: Plan, pool: PagedPool, offsets: Mapping[str, int]) -> None:
    """Deal every page out again, one after the other, and count bytes page by page."""
    still = not any(pool.promoted_bytes) and not any(pool.demoted_bytes)
    require(still, Fault.PAGES, f"'{plan.optimizer}' moves no pages, the plan does")
    to_fast, to_slow = pool.weights or (1, 0)
    dealt = not plan.limit.is_unlimited
    size, room = pool.page_bytes, pool.fast_pages
    fast: dict[int, bool] = {}
    filled = [tensor.name for tensor in graph.movable if tensor.producer is None]
    spans = [(offsets[name], graph.by_name[name].size_bytes) for name in filled]
    for kernel in graph.kernels:
        spans += [(offsets[name], graph.by_name[name].size_bytes) for name in graph.slots_of(kernel)]
    for start, length in spans:
        for page in range(start // size, -(-(start + length) // size)):
            if page not in fast:
                fast[page] = room > 0 and (not dealt or page % (to_fast + to_slow) < to_fast)
                room -= fast[page]
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
