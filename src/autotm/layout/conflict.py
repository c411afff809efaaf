"""The smallest set of blocks that is found not to fit into a limit together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from autotm.layout.addresses import Addresses
from autotm.layout.blocks import Blocks, Ints
from autotm.layout.pack import can_pack, pack_blocks, quick_packings
from autotm.model.plan import Stay
from autotm.model.step import Graph, Tier

_LARGE = 0.005
"""Blocks of at least this share of the limit make a conflict. Small ones fit somewhere as soon as a little room is
left: a smaller limit is what helps there, and not a row about a few bytes."""
_TRIALS = 40
"""Sets tried while one is made smaller; each is a search that is cut off."""
_MOST = 60
"""A set with more members says too little: giving up any one of them satisfies it."""


class StepPacking:
    """Judges plans for one step (`solve/problem/packing.py`), and remembers the offsets that it found.

    Attributes:
        end_s: reading of `time.perf_counter` from which on only the quick packings are tried.
    """

    def __init__(self, graph: Graph) -> None:
        self.end_s = math.inf
        self._graph = graph
        self._known: dict[bytes, Ints] = {}

    def fits(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> bool:
        """Whether offsets within the limit are found for the fast stays."""
        _, blocks = self._blocks(stays, implementations)
        return blocks.height(self.place(blocks, limit_bytes)) <= limit_bytes

    def conflict(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> Sequence[Stay]:
        """The smallest set of fast stays found that does not fit."""
        fast, blocks = self._blocks(stays, implementations)
        return [fast[member] for member in conflict(blocks, limit_bytes, self.end_s)]

    def addresses(
        self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int
    ) -> Iterator[Addresses]:
        """Those that the fast stays get, as far as they fit, by each quick packing and by the lowest one."""
        fast, blocks = self._blocks(stays, implementations)
        for offsets in (self.place(blocks, limit_bytes), *quick_packings(blocks)):
            yield Addresses.of(fast, blocks, offsets, limit_bytes)

    def settle(
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
        """The fast ones, in a plan's order."""
        kernels = enumerate(self._graph.kernels)
        chosen = self._graph.computed_by([implementations.get(n, kernel.implementation) for n, kernel in kernels])
        fast = sorted((stay for stay in stays if stay.tier is Tier.DRAM), key=lambda stay: stay.order)
        return fast, Blocks.of(chosen, fast)

    def place(self, blocks: Blocks, limit_bytes: int | None) -> Ints:
        """As `pack_blocks`; nothing is packed twice, since a sweep asks again for what its searches have settled."""
        asked = blocks.digest(limit_bytes)
        if asked in self._known:
            return self._known[asked]
        offsets = pack_blocks(blocks, limit_bytes, self.end_s)
        if time.perf_counter() < self.end_s:
            self._known[asked] = offsets
        return offsets


def conflict(blocks: Blocks, limit_bytes: int, end_s: float = math.inf) -> list[int]:
    """Indices of large blocks that were found not to fit together; none if they do, or too many are needed.

    A set that resists a short search, though its bytes never exceed the limit, need not be impossible to pack. First
    the last kernels go, then the first ones, then the smallest blocks, each by bisection, then single blocks. None is
    found once `time.perf_counter` has reached `end_s`: what no search was made for does not resist.
    """
    large = np.flatnonzero(blocks.sizes >= _LARGE * limit_bytes)
    trials = takewhile(lambda _: time.perf_counter() < end_s, range(_TRIALS))

    def resists(members: Ints) -> bool:
        return not can_pack(blocks[members], limit_bytes, end_s)

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
    """The shortest beginning found that still resists, all of them being known to."""
    fits, fails = 0, len(members)
    while fails - fits > 1 and next(trials, None) is not None:
        middle = (fits + fails) // 2
        if resists(members[:middle]):
            fails = middle
        else:
            fits = middle
    return members[:fails]
