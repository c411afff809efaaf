"""Offsets for both pools: first fit or a skyline, repaired where it ends above the limit, then branch and bound."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain

import numpy as np
import numpy.typing as npt

from autotm.model.graph import ALIGNMENT_BYTES, ChosenGraph, CountedGraph, Tier
from autotm.model.plan import Plan, Stay
from autotm.model.program import Layout

if "matplotlib" in sys.modules:
    from omnimalloc import Allocation
else:
    # Its pictures, which nobody asks for here, would import matplotlib, where there is one: 0.6 s of every job.
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        from omnimalloc import Allocation
    finally:
        del sys.modules["matplotlib"]
from omnimalloc._cpp import Partition, first_fit_place, try_solve_many

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Blocks:
    """Block i takes `sizes[i]` bytes, a multiple of the alignment, during kernels [starts[i], ends[i])."""

    sizes: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, graph: ChosenGraph, stays: Sequence[Stay]) -> Blocks:
        """Return the stays as blocks of their tensors' allocated bytes."""
        sizes = [graph.by_name[stay.tensor].allocated_bytes for stay in stays]
        columns = (sizes, [stay.start for stay in stays], [stay.end for stay in stays])
        return cls(*(np.array(column, np.int64) for column in columns))

    @classmethod
    def joined(cls, first: Blocks, second: Blocks) -> Blocks:
        """Return the blocks of both."""
        parts = ((first.sizes, second.sizes), (first.starts, second.starts), (first.ends, second.ends))
        return cls(*map(np.concatenate, parts))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, members: Sequence[int] | Ints) -> Blocks:
        """Return the blocks with these indices, in the order given."""
        chosen = np.asarray(members, np.int64)
        return Blocks(self.sizes[chosen], self.starts[chosen], self.ends[chosen])

    def digest(self, limit_bytes: int | None) -> bytes:
        """Return a hash of the blocks, in their order, and of a limit."""
        content = b"".join(part.tobytes() for part in (self.sizes, self.starts, self.ends))
        return hashlib.blake2b(repr(limit_bytes).encode() + content, digest_size=16).digest()

    @property
    def live_bytes(self) -> Ints:
        """(kernels,) Bytes live during each kernel, up to the last one that a block lives through."""
        change = np.zeros(int(self.ends.max(initial=0)) + 1, np.int64)
        np.add.at(change, self.starts, self.sizes)
        np.add.at(change, self.ends, -self.sizes)
        return change.cumsum()[:-1]

    @property
    def peak_bytes(self) -> int:
        """Most bytes live during one kernel: no packing is lower."""
        return int(self.live_bytes.max(initial=0))

    def height(self, offsets: Ints) -> int:
        """Return the bytes that a pool needs for these offsets."""
        return int((offsets + self.sizes).max(initial=0))

    def groups(self) -> Iterator[list[int]]:
        """Yield groups of blocks whose spans never meet those of another group: each can use the whole pool."""
        group: list[int] = []
        end = 0
        for block in np.argsort(self.starts, kind="stable").tolist():
            if group and self.starts[block] >= end:
                yield group
                group = []
            group.append(block)
            end = max(end, int(self.ends[block]))
        if group:
            yield group


# Best-fit packing on a skyline (Sekiyama et al., 2018, arXiv:1804.10001, with other priorities too).
#
# The skyline is the top of what is placed, over kernel time. The lowest stretch of it takes the unplaced block of
# highest priority whose span lies inside the stretch; a stretch that no block fits into is raised to its lower
# neighbour.

_PLACED = np.iinfo(np.int64).max
"""Rank of a block that has its offset."""


def skyline(blocks: Blocks, priority: Floats) -> Ints:
    """Return the offsets that result when the lowest stretch always takes the fitting block of highest `priority`."""
    ranks = np.empty(len(blocks), np.int64)
    ranks[np.argsort(-priority, kind="stable")] = np.arange(len(blocks))
    # Blocks by their start, so that those within a stretch are looked for among its own only.
    waiting = np.argsort(blocks.starts, kind="stable")
    starts, ends, ranks = blocks.starts[waiting], blocks.ends[waiting], ranks[waiting]
    # Stretches (start, end, height) by their start, and starts by their end; neighbours differ in height. The heap
    # keeps those that are no more, too: a stretch is found by its start, and is another if it has another height.
    first, last = int(blocks.starts.min(initial=0)), int(blocks.ends.max(initial=0))
    line, start_by_end = {first: (first, last, 0)}, {last: first}
    lowest, offsets, left = [(0, first)], np.zeros(len(blocks), np.int64), len(blocks)
    while left:
        # 1. The lowest stretch, the earliest of several, and the block of highest priority within it.
        floor, start = heappop(lowest)
        stretch = line.get(start)
        if stretch is None or stretch[2] != floor:
            continue
        end = stretch[1]
        first, last = starts.searchsorted((start, end)).tolist()
        fitting = np.where(ends[first:last] <= end, ranks[first:last], _PLACED)
        # 2. What takes the place of the stretch: it is raised to its lower neighbour, or part of it by the block.
        before = [line[start_by_end[start]]] if start in start_by_end else []
        after = [line[end]] if end in line else []
        best = int(fitting.argmin()) if first < last else 0
        if first == last or fitting[best] == _PLACED:
            pieces = [(start, end, min(height for _, _, height in before + after))]
        else:
            ranks[first + best], block = _PLACED, int(waiting[first + best])
            offsets[block] = floor
            left -= 1
            low, high = int(blocks.starts[block]), int(blocks.ends[block])
            pieces = [(start, low, floor), (low, high, floor + int(blocks.sizes[block])), (high, end, floor)]
        # 3. Neighbours of equal height become one stretch.
        for begin, until, _ in (*before, stretch, *after):
            del line[begin], start_by_end[until]
        joined: list[tuple[int, int, int]] = []
        for low, high, height in before + pieces + after:
            if low < high:
                joined.append((joined.pop()[0] if joined and joined[-1][2] == height else low, high, height))
        for begin, until, height in joined:
            line[begin], start_by_end[until] = (begin, until, height), begin
            heappush(lowest, (height, begin))
        # 4. Blocks that have their offsets are forgotten once they are the majority.
        if 2 * left < len(waiting):
            unplaced = ranks != _PLACED
            waiting, starts, ends, ranks = (column[unplaced] for column in (waiting, starts, ends, ranks))
    return offsets


# Packing by omnimalloc: first fit, and branch and bound (supermalloc).
#
# The only place that knows the library. Its allocator classes check what they are given and what they return, and its
# search minimises for as long as it is given; here a bound is known that suffices, and a search that is cut off by
# nodes gives the same offsets on every machine. So its functions are called directly, as its own experiments do.


_ORDERS = ("TWA", "WAT", "OTW", "UWC", "TAW", "CTA", "ALZ")
"""Orders in which blocks are placed, by the library's letters: W duration, A area, T most live bytes during its life,
L start, U end, Z size, O how many blocks it meets, C how many kernels. The first ones succeeded most often."""
_SHARES = (0.02, 0.005, 0.001)
"""Blocks of at least this share of the bound are large; few are quick to place, many leave less to chance."""
_NODES, _NODES_PER_BLOCK = 3000, 3
_ORDER_S = 10.0
"""A guard only: nodes end the search long before, on a loaded machine too, or offsets would depend on the clock."""
_FEW, _FIRST = 2000, 2
"""Where there are no more blocks than this, all are first tried at once, in the first orders."""
_MOST_LARGE = 4000
"""The search keeps a state for each block that it has placed: so many take some 200 MB."""
_MOST_FITTED = 5000
"""First fit lists all pairs of blocks that meet: 93 000 blocks of a deep network took 1.3 GB, and 8 s."""


def searched_packings(blocks: Blocks, bound_bytes: int, end_s: float = math.inf) -> Iterator[Ints]:
    """Yield the offsets with at least the large blocks within `bound_bytes`; others may end above it.

    Nothing is searched once `time.perf_counter` has reached `end_s`.
    """
    few = len(blocks) <= _FEW
    yield from _all_within(blocks, bound_bytes, _ORDERS[:_FIRST] if few else (), end_s)
    tried = -1
    for share in _SHARES:
        large = np.flatnonzero(blocks.sizes >= share * bound_bytes)
        if not tried < len(large) <= _MOST_LARGE:
            continue
        tried = len(large)
        for order in _ORDERS:
            placed = _search(blocks[large], bound_bytes, order, end_s)
            if placed is not None:
                yield _filled(blocks, large, placed)
    yield from _all_within(blocks, bound_bytes, _ORDERS[_FIRST if few else 0 :], end_s)


def _all_within(blocks: Blocks, bound_bytes: int, orders: Sequence[str], end_s: float) -> Iterator[Ints]:
    if len(blocks) <= _MOST_LARGE:
        searches = (_search(blocks, bound_bytes, order, end_s) for order in orders)
        yield from (offsets for offsets in searches if offsets is not None)


def _search(blocks: Blocks, bound_bytes: int, order: str, end_s: float) -> Ints | None:
    left_s = end_s - time.perf_counter()
    if left_s <= 0:
        return None
    bound = bound_bytes // ALIGNMENT_BYTES
    # Only moments at which a block begins or ends count as times.
    _, moments = np.unique(np.concatenate([blocks.starts, blocks.ends]), return_inverse=True)
    by_moments = Blocks(blocks.sizes, moments[: len(blocks)], moments[len(blocks) :])
    partition = Partition.from_allocations(_allocations(by_moments))
    if partition.lower_bound > bound:
        return None
    solution = try_solve_many(
        [partition.reorder(order).with_bound(bound + 1)],
        bound + 1,
        _NODES + _NODES_PER_BLOCK * len(blocks),
        canonical=True,
        dominance=True,
        floor_inference=True,
        monotonic_floor=True,
        decompose=True,
        timeout=min(_ORDER_S, left_s),
        num_threads=1,
    )
    return None if solution is None else _offsets(solution.allocations)


def _filled(blocks: Blocks, large: Ints, offsets: Ints) -> Ints:
    """Return the large blocks where they are, the others first-fit around them, the largest first."""
    allocations = _allocations(blocks)
    for block, offset in zip(large.tolist(), offsets.tolist(), strict=True):
        allocations[block] = allocations[block].with_offset(offset // ALIGNMENT_BYTES)
    return _first_fit(allocations, np.argsort(-blocks.sizes, kind="stable"))


def _first_fit(allocations: list[Allocation], order: Ints) -> Ints:
    """Return offsets: each allocation takes the lowest free one, in this order; some have theirs from the start."""
    return _offsets(first_fit_place([allocations[index] for index in order.tolist()]))


def _allocations(blocks: Blocks) -> list[Allocation]:
    sizes = (blocks.sizes // ALIGNMENT_BYTES).tolist()
    spans = zip(sizes, blocks.starts.tolist(), blocks.ends.tolist(), strict=True)
    return [Allocation(number, size, start, end) for number, (size, start, end) in enumerate(spans)]


def _offsets(placed: Sequence[Allocation]) -> Ints:
    offsets = np.zeros(len(placed), np.int64)
    for allocation in placed:
        assert isinstance(allocation.id, int)
        assert allocation.offset is not None
        offsets[allocation.id] = allocation.offset * ALIGNMENT_BYTES
    return offsets


# Repair: what ends above a limit is placed anew, together with its neighbours.


_MOST_MOVED = 600
"""Blocks that are placed anew together, at most. Of 201 packings of five networks' plans, 132 were repaired; with 150
blocks 116, in half the time. Where none is, there is a search."""
_TRIALS = 8
"""Orders tried from each first order: of those packings, 123 were repaired with 4 orders, 136 with 16."""
_SOONER = 4.0
"""Factor by which what ended above the limit comes sooner in the next order: of those packings, 128 were repaired with
a factor of 2, 127 with 16."""


def repaired(blocks: Blocks, offsets: Ints, limit_bytes: int) -> Ints | None:
    """Return offsets within the limit, equal to these except around blocks that end above it; `None` if not found.

    The blocks that live within a window of kernels around such a block are taken out, and placed first-fit around the
    others. An order that leaves some of them above the limit is followed by one in which these come sooner
    ("squeaky wheel" optimization: Joslin and Clements, 1999, doi:10.1613/jair.561). Then the window is widened.
    """
    if blocks.peak_bytes > limit_bytes:
        return None
    offsets, is_above = offsets.copy(), offsets + blocks.sizes > limit_bytes
    while is_above.any():
        above = np.flatnonzero(is_above)
        block = above[blocks.starts[above].argmin()]
        for members in _windows(blocks, int(block)):
            found = _placed_anew(blocks, offsets, members, ~is_above, limit_bytes)
            if found is not None:
                offsets[members], is_above[members] = found, False
                break
        else:
            return None
    return offsets


def _windows(blocks: Blocks, block: int) -> Iterator[Ints]:
    """Yield the blocks that live within windows around the life of one, each window wider than the one before."""
    start, end, reach, count = int(blocks.starts[block]), int(blocks.ends[block]), 1, 0
    while count < len(blocks):
        members = np.flatnonzero((blocks.starts >= start - reach) & (blocks.ends <= end + reach))
        if len(members) > _MOST_MOVED:
            return
        if len(members) > count:
            count = len(members)
            yield members
        reach *= 2


def _placed_anew(blocks: Blocks, offsets: Ints, members: Ints, is_placed: Bools, limit_bytes: int) -> Ints | None:
    """Return offsets of the members within the limit, around other blocks that are placed; `None` if not found."""
    moved = blocks[members]
    obstacles, fixed = _obstacles(blocks, offsets, members, is_placed)
    allocations = _allocations(Blocks.joined(moved, obstacles))
    standing = np.arange(len(moved), len(allocations))
    for index, offset in zip(standing.tolist(), fixed.tolist(), strict=True):
        allocations[index] = allocations[index].with_offset(offset // ALIGNMENT_BYTES)
    known = set[bytes]()
    for first in _priorities(moved):
        priority = first.copy()
        for _ in range(_TRIALS):
            order = np.argsort(-priority, kind="stable")
            if order.tobytes() in known:
                break
            known.add(order.tobytes())
            found = _first_fit(allocations, np.concatenate((standing, order)))[: len(moved)]
            is_above = found + moved.sizes > limit_bytes
            if not is_above.any():
                return found
            priority[is_above] *= _SOONER
    return None


def _obstacles(blocks: Blocks, offsets: Ints, members: Ints, is_placed: Bools) -> tuple[Blocks, Ints]:
    """Return what is in the way of the members, and its offsets.

    Neighbours that are there all the time become one: among thousands of long lives, which first fit would look at each
    time, there are few holes.
    """
    start, end = int(blocks.starts[members].min()), int(blocks.ends[members].max())
    meets = is_placed & (blocks.starts < end) & (start < blocks.ends)
    meets[members] = False
    others = np.flatnonzero(meets)
    stays = (blocks.starts[others] <= start) & (end <= blocks.ends[others])
    lasting, passing = others[stays], others[~stays]
    lows, highs = np.sort(offsets[lasting]), np.sort(offsets[lasting] + blocks.sizes[lasting])
    is_lowest = np.ones(len(lows), np.bool_)
    is_lowest[1:] = lows[1:] > highs[:-1]
    lows, highs = lows[is_lowest], highs[np.roll(is_lowest, -1)]
    merged = Blocks(highs - lows, np.full(len(lows), start), np.full(len(lows), end))
    return Blocks.joined(blocks[passing], merged), np.concatenate((offsets[passing], lows))


_CLOSE = 1.0005
"""This share of the live peak is close enough to stop."""
_WIDER = 1.01
"""Without a limit to keep, the share of the live peak that is tried next."""


Place = Callable[[Blocks, int | None], Ints]
"""Offsets of blocks for a limit in bytes."""


def layout_of(graph: CountedGraph, plan: Plan, place: Place | None = None) -> Layout:
    """Return an offset for every stay of the plan, 64-byte aligned: those that the plan states, or else new ones.

    Two stays of one tier may share bytes exactly when their spans [start, end) do not meet. That suffices at the
    boundary before kernel b. A stay that ends at b is still read there by asynchronous moves, which are waited for
    before anything else happens, and, if it is fast, by blocking moves to slow memory. Those write stays in slow memory
    that begin at b; what they overwrite belongs to slow stays that ended at b, which no move reads any more, since a
    blocking move to fast memory reads a stay that holds during b. Only then come blocking moves to fast memory,
    asynchronous moves that start, and the kernel. Nothing writes a stay before it begins or after it has ended: an
    asynchronous move's destination stay begins when the move starts and holds when it is complete.

    A plan for memory behind a cache, or whose pages Linux places, has decided its addresses itself. `place` is what
    packs, if not `pack_blocks`.
    """
    if (pool := plan.one_pool) is not None:
        return Layout(plan.stays, pool.offsets, 0, pool.size_bytes)
    chosen = plan.step_of(graph)
    limits = {Tier.FAST: None if plan.limit.is_unlimited else plan.dram_limit_bytes, Tier.SLOW: None}
    offsets = np.array(plan.offsets or [0] * len(plan.stays), np.int64)
    heights = {}
    for tier in Tier:
        members = [index for index, stay in enumerate(plan.stays) if stay.tier is tier]
        blocks = Blocks.of(chosen, [plan.stays[index] for index in members])
        if not plan.offsets:
            offsets[members] = (place or pack_blocks)(blocks, limits[tier])
        heights[tier] = blocks.height(offsets[members])
    return Layout(plan.stays, tuple(offsets.tolist()), heights[Tier.FAST], heights[Tier.SLOW])


def pack_blocks(blocks: Blocks, limit_bytes: int | None = None, end_s: float = math.inf) -> Ints:
    """Return the offsets within 0.05 % of the live peak; else within the limit; else the lowest found.

    Once `time.perf_counter` has reached `end_s`, nothing is searched: quick packings, repaired, are all that is tried.
    """
    peak_bytes = blocks.peak_bytes
    close = int(peak_bytes * _CLOSE)
    wider = int(peak_bytes * _WIDER) if limit_bytes is None else limit_bytes
    targets = [close if limit_bytes is None else min(close, max(limit_bytes, peak_bytes))]
    targets += [wider] if wider > close else []
    offsets = np.zeros(len(blocks), np.int64)
    for members in blocks.groups():
        offsets[members] = _first_within(blocks[members], targets, end_s)
    return offsets


def fits_within(blocks: Blocks, limit_bytes: int, end_s: float = math.inf) -> bool:
    """Return whether offsets within the limit are found; quicker than to look for the lowest ones."""
    groups = (blocks[members] for members in blocks.groups())
    return all(group.height(_first_within(group, [limit_bytes], end_s)) <= limit_bytes for group in groups)


def _first_within(blocks: Blocks, targets: list[int], end_s: float) -> Ints:
    """Return the first packing within the first target that can be met; else the lowest."""
    best, lowest = np.zeros(0, np.int64), math.inf
    for target in targets:
        quick = quick_packings(blocks) if target == targets[0] else [best]
        for offsets in chain(quick, searched_packings(blocks, target, end_s)):
            if (height := blocks.height(offsets)) < lowest:
                best, lowest = offsets, height
            if lowest <= target:
                return best
            if (within := repaired(blocks, offsets, target)) is not None:
                return within
    return best


def quick_packings(blocks: Blocks) -> Iterator[Ints]:
    """Yield offsets by first fit, the longest lives first, then on skylines that prefer long lives, or large areas."""
    long, _, area = _priorities(blocks)
    if len(blocks) <= _MOST_FITTED:
        yield _first_fit(_allocations(blocks), np.argsort(-long, kind="stable"))
    yield from (skyline(blocks, priority) for priority in (long, area))


def _priorities(blocks: Blocks) -> tuple[Floats, Floats, Floats]:
    """Return life, size and area; of equal lives the larger block comes first, of equal sizes the longer life."""
    sizes, lives = blocks.sizes.astype(np.float64), (blocks.ends - blocks.starts).astype(np.float64)
    return lives + sizes / (sizes.max(initial=0) + 1), sizes + lives / (lives.max(initial=0) + 1), sizes * lives
