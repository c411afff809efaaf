"""Addresses of a plan's fast stays: whether they all have one, what goes around them, and which do not fit together."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from autotm.layout.packing import Blocks, Ints, fits_within, pack_blocks, quick_packings
from autotm.model.graph import CountedGraph, Tier
from autotm.model.plan import Stay

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
        end_s: reading of `time.perf_counter` from which on nothing is searched, and only quick packings are tried.
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
        """Yield the addresses of the fast stays, as far as they fit: by `place`, then by each quick packing."""
        fast, blocks = self._blocks(stays, implementations)
        for offsets in (self.place(blocks, limit_bytes), *quick_packings(blocks)):
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
