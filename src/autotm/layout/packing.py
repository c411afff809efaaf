"""Offsets for both pools: a skyline, then branch and bound; and sets of stays that do not fit together."""

from __future__ import annotations

import copy
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

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
from omnimalloc._cpp import Partition, try_solve_many
from omnimalloc.allocators.greedy import GreedyBySizeAllocator

Ints = npt.NDArray[np.int64]


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


def skyline(blocks: Blocks, priority: npt.NDArray[np.float64]) -> Ints:
    """Return the offsets that result when the lowest stretch always takes the fitting block of highest `priority`."""
    ranks = np.empty(len(blocks), np.int64)
    ranks[np.argsort(-priority, kind="stable")] = np.arange(len(blocks))
    # Blocks by their start, so that those within a stretch are looked for among its own only.
    waiting = np.argsort(blocks.starts, kind="stable")
    starts, ends, ranks = blocks.starts[waiting], blocks.ends[waiting], ranks[waiting]
    # Stretches (start, end, height), ascending and gapless; neighbours differ in height.
    line = [(int(blocks.starts.min(initial=0)), int(blocks.ends.max(initial=0)), 0)]
    offsets, left = np.zeros(len(blocks), np.int64), len(blocks)
    while left:
        # 1. The lowest stretch, the earliest of several, and the block of highest priority within it.
        heights = [height for _, _, height in line]
        floor = min(heights)
        index = heights.index(floor)
        start, end, _ = line[index]
        first, last = starts.searchsorted((start, end)).tolist()
        fitting = np.where(ends[first:last] <= end, ranks[first:last], _PLACED)
        # 2. What takes the place of the stretch: it is raised to its lower neighbour, or part of it by the block.
        before, after = line[max(index - 1, 0) : index], line[index + 1 : index + 2]
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
        joined: list[tuple[int, int, int]] = []
        for low, high, height in before + pieces + after:
            if low < high:
                joined.append((joined.pop()[0] if joined and joined[-1][2] == height else low, high, height))
        line[max(index - 1, 0) : index + 2] = joined
        # 4. Blocks that have their offsets are forgotten once they are the majority.
        if 2 * left < len(waiting):
            unplaced = ranks != _PLACED
            waiting, starts, ends, ranks = (column[unplaced] for column in (waiting, starts, ends, ranks))
    return offsets


# Packing by omnimalloc: branch and bound (supermalloc) for the large blocks, first fit for the others.
#
# The only place that knows the library. Its allocator class minimises for as long as it is given; here a bound is known
# that suffices, and a search that is cut off by nodes gives the same offsets on every machine. So its search is called
# directly, as its own experiments do, once for each order of the blocks.


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
    return _offsets(list(GreedyBySizeAllocator().allocate(tuple(allocations))))


def _allocations(blocks: Blocks) -> list[Allocation]:
    sizes = (blocks.sizes // ALIGNMENT_BYTES).tolist()
    spans = zip(sizes, blocks.starts.tolist(), blocks.ends.tolist(), strict=True)
    return [Allocation(number, size, start, end) for number, (size, start, end) in enumerate(spans)]


def _offsets(placed: list[Allocation]) -> Ints:
    offsets = np.zeros(len(placed), np.int64)
    for allocation in placed:
        assert isinstance(allocation.id, int)
        assert allocation.offset is not None
        offsets[allocation.id] = allocation.offset * ALIGNMENT_BYTES
    return offsets


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

    Once `time.perf_counter` has reached `end_s`, the packings on a skyline are all that is tried.
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
    best, lowest = np.zeros(0, np.int64), None
    for target in targets:
        quick = skyline_packings(blocks) if target == targets[0] else ()
        for offsets in chain(quick, searched_packings(blocks, target, end_s)):
            height = blocks.height(offsets)
            if lowest is None or height < lowest:
                best, lowest = offsets, height
            if lowest <= target:
                return best
    return best


def skyline_packings(blocks: Blocks) -> Iterator[Ints]:
    """Yield the offsets on a skyline whose lowest stretch prefers long lives, or large areas."""
    sizes, spans = blocks.sizes.astype(np.float64), (blocks.ends - blocks.starts).astype(np.float64)
    return (skyline(blocks, priority) for priority in (spans + sizes / (sizes.max(initial=0) + 1), sizes * spans))


_NEVER = np.iinfo(np.int64).max
"""Start of what holds no memory."""


class Addresses:
    """Offsets and sizes of stays within a limit; what others need, they go around.

    Attributes:
        left_out: stays that got none.
    """

    def __init__(self, places: Mapping[Stay, tuple[int, int]], left_out: Sequence[Stay], limit_bytes: int) -> None:
        self.left_out = left_out
        self._limit_bytes = limit_bytes
        self._rows = {stay: row for row, stay in enumerate(places)}
        self._spans: Ints = np.array([(stay.start, stay.end) for stay in places], np.int64).reshape(-1, 2)
        self._extents: Ints = np.array([(offset, offset + size) for offset, size in places.values()]).reshape(-1, 2)
        self._unused: list[int] = []

    @classmethod
    def of(cls, stays: Sequence[Stay], blocks: Blocks, offsets: Ints, limit_bytes: int) -> Addresses:
        """Return the offsets of stays as far as they are within the limit."""
        places = dict(zip(stays, zip(offsets.tolist(), blocks.sizes.tolist(), strict=True), strict=True))
        within = {stay: place for stay, place in places.items() if sum(place) <= limit_bytes}
        return cls(within, [stay for stay in stays if stay not in within], limit_bytes)

    def copy(self) -> Addresses:
        """Return a copy that changes by itself."""
        other = copy.copy(self)
        other.__dict__.update(
            _rows=dict(self._rows),
            _unused=list(self._unused),
            _spans=self._spans.copy(),
            _extents=self._extents.copy(),
        )
        return other

    def __contains__(self, stay: Stay) -> bool:
        return stay in self._rows

    def remove(self, stay: Stay) -> None:
        """Forget a stay, whether it has an offset or not."""
        row = self._rows.pop(stay, None)
        if row is not None:
            self._spans[row] = _NEVER
            self._unused.append(row)

    def has_hole(self, stay: Stay, size_bytes: int) -> bool:
        """Return whether `put` would find an offset."""
        return self._lowest(stay, size_bytes) + size_bytes <= self._limit_bytes

    def put(self, stay: Stay, size_bytes: int) -> bool:
        """Give a stay the lowest offset at which nothing is in its way; `False` if none is within the limit."""
        offset = self._lowest(stay, size_bytes)
        if offset + size_bytes > self._limit_bytes:
            return False
        if not self._unused:
            more = max(1, len(self._spans))
            self._unused += range(len(self._spans), len(self._spans) + more)
            self._spans = np.concatenate((self._spans, np.full((more, 2), _NEVER)))
            self._extents = np.concatenate((self._extents, np.zeros((more, 2), np.int64)))
        row = self._rows[stay] = self._unused.pop()
        self._spans[row] = stay.start, stay.end
        self._extents[row] = offset, offset + size_bytes
        return True

    def _lowest(self, stay: Stay, size_bytes: int) -> int:
        meeting = (self._spans[:, 0] < stay.end) & (stay.start < self._spans[:, 1])
        extents = self._extents[meeting]
        extents = extents[extents[:, 0].argsort()]
        above = np.concatenate(([0], np.maximum.accumulate(extents[:, 1])))
        wide = extents[:, 0] - above[:-1] >= size_bytes
        return int(above[wide.argmax() if wide.any() else -1])

    def offsets(self, stays: Sequence[Stay]) -> Ints:
        """Return the offsets of stays, all of which must have one."""
        return self._extents[[self._rows[stay] for stay in stays], 0]


_LARGE = 0.005
"""Blocks of at least this share of the limit make a conflict. Small ones fit somewhere as soon as a little room is
left: a smaller limit is what helps there, and not a row about a few bytes."""
_TRIALS = 40
"""Sets tried while one is made smaller; each is a search that is cut off."""
_MOST = 60
"""A set with more members says too little: giving up any one of them satisfies it."""


class StepPacking:
    """Says whether the stays of plans for one step have addresses, and remembers the offsets that it computed.

    Attributes:
        end_s: reading of `time.perf_counter` from which on only the packings on a skyline are tried.
    """

    def __init__(self, graph: CountedGraph) -> None:
        self.end_s = math.inf
        self._graph = graph
        self._known: dict[bytes, Ints] = {}

    def fits(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> bool:
        """Return whether offsets within the limit are found for the fast stays."""
        _, blocks = self._blocks(stays, implementations)
        return blocks.height(self.place(blocks, limit_bytes)) <= limit_bytes

    def conflict(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> Sequence[Stay]:
        """Return the smallest set of fast stays found that does not fit."""
        fast, blocks = self._blocks(stays, implementations)
        return [fast[member] for member in conflict(blocks, limit_bytes, self.end_s)]

    def addresses(
        self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int
    ) -> Iterator[Addresses]:
        """Yield the addresses of the fast stays, as far as they fit: by `place`, then by each packing on a skyline."""
        fast, blocks = self._blocks(stays, implementations)
        for offsets in (self.place(blocks, limit_bytes), *skyline_packings(blocks)):
            yield Addresses.of(fast, blocks, offsets, limit_bytes)

    def keep(
        self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int, addresses: Addresses
    ) -> bool:
        """Keep the addresses for fast stays; new workspaces get theirs first. `False` if one of them finds no place."""
        fast, blocks = self._blocks(stays, implementations)
        sizes = zip(fast, blocks.sizes.tolist(), strict=True)
        if not all(stay in addresses or addresses.put(stay, size) for stay, size in sizes):
            return False
        self._known[blocks.digest(limit_bytes)] = addresses.offsets(fast)
        return True

    def _blocks(self, stays: Sequence[Stay], implementations: Mapping[int, str]) -> tuple[list[Stay], Blocks]:
        """Return the fast stays in a plan's order, and their blocks."""
        kernels = enumerate(self._graph.kernels)
        chosen = self._graph.computed_by([implementations.get(n, kernel.implementation) for n, kernel in kernels])
        fast = sorted((stay for stay in stays if stay.tier is Tier.FAST), key=lambda stay: stay.order)
        return fast, Blocks.of(chosen, fast)

    def place(self, blocks: Blocks, limit_bytes: int | None) -> Ints:
        """Pack blocks as `pack_blocks` does, but reuse known results: a sweep asks again for those of its searches."""
        asked = blocks.digest(limit_bytes)
        if asked in self._known:
            return self._known[asked]
        offsets = pack_blocks(blocks, limit_bytes, self.end_s)
        if time.perf_counter() < self.end_s:
            self._known[asked] = offsets
        return offsets


def conflict(blocks: Blocks, limit_bytes: int, end_s: float = math.inf) -> list[int]:
    """Return the indices of large blocks that were found not to fit together; none if they do, or too many are needed.

    A set that resists a short search, though its bytes never exceed the limit, need not be impossible to pack. First
    the last kernels go, then the first ones, then the smallest blocks, each by bisection, then single blocks. None is
    found once `time.perf_counter` has reached `end_s`: what no search was made for does not resist.
    """
    large = np.flatnonzero(blocks.sizes >= _LARGE * limit_bytes)
    trials = takewhile(lambda _: time.perf_counter() < end_s, range(_TRIALS))

    def resists(members: Ints) -> bool:
        return not fits_within(blocks[members], limit_bytes, end_s)

    if not len(large) or not resists(large):
        return []
    for orders in (blocks.starts, -blocks.ends, -blocks.sizes):
        large = _shortest(large[np.argsort(orders[large], kind="stable")], resists, trials)
    for member in large[np.argsort(blocks.sizes[large], kind="stable")].tolist():
        if next(trials, None) is None:
            break
        without = large[large != member]
        if resists(without):
            large = without
    is_sure = time.perf_counter() < end_s
    return sorted(large.tolist()) if is_sure and len(large) <= _MOST else []


def _shortest(members: Ints, resists: Callable[[Ints], bool], trials: Iterator[int]) -> Ints:
    """Return the shortest beginning found of `members` that still resists; all of them together are known to resist."""
    fits, fails = 0, len(members)
    while fails - fits > 1 and next(trials, None) is not None:
        middle = (fits + fails) // 2
        if resists(members[:middle]):
            fails = middle
        else:
            fits = middle
    return members[:fails]
