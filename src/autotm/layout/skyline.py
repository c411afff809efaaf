"""Best-fit packing on a skyline (Sekiyama et al., 2018, arXiv:1804.10001, with other priorities too).

The skyline is the top of what is placed, over kernel time. The lowest stretch of it takes the unplaced block of highest
priority whose span lies inside the stretch; a stretch that no block fits into is raised to its lower neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.layout.blocks import Blocks, Ints

_PLACED = np.iinfo(np.int64).max


def skyline(blocks: Blocks, priority: npt.NDArray[np.float64]) -> Ints:
    """Offsets when the lowest stretch always takes the fitting block of highest `priority`."""
    offsets = np.zeros(len(blocks), np.int64)
    line = _Skyline(int(blocks.starts.min(initial=0)), int(blocks.ends.max(initial=0)))
    waiting, left = _Waiting.of(blocks, priority), len(blocks)
    while left:
        index = line.lowest()
        start, end, floor = line.stretches[index]
        block = waiting.take(start, end)
        if block is None:
            line.raise_to_neighbour(index)
            continue
        offsets[block] = floor
        left -= 1
        line.put(index, int(blocks.starts[block]), int(blocks.ends[block]), floor + int(blocks.sizes[block]))
        if 2 * left < len(waiting):
            waiting = waiting.rest()
    return offsets


@dataclass(frozen=True)
class _Waiting:
    """Unplaced blocks by their start, so that those within a stretch are looked for among its own only.

    Attributes:
        blocks: their indices.
        starts, ends: of these.
        ranks: 0 for the highest priority; `_PLACED` once a block is taken.
    """

    blocks: Ints
    starts: Ints
    ends: Ints
    ranks: Ints

    @classmethod
    def of(cls, blocks: Blocks, priority: npt.NDArray[np.float64]) -> _Waiting:
        ranks = np.empty(len(blocks), np.int64)
        ranks[np.argsort(-priority, kind="stable")] = np.arange(len(blocks))
        by_start = np.argsort(blocks.starts, kind="stable")
        return cls(by_start, blocks.starts[by_start], blocks.ends[by_start], ranks[by_start])

    def __len__(self) -> int:
        return len(self.blocks)

    def take(self, start: int, end: int) -> int | None:
        """The block of highest priority whose span lies in [start, end); None where there is none."""
        first, last = self.starts.searchsorted((start, end)).tolist()
        if first == last:
            return None
        ranks = np.where(self.ends[first:last] <= end, self.ranks[first:last], _PLACED)
        found = first + int(ranks.argmin())
        if ranks[found - first] == _PLACED:
            return None
        self.ranks[found] = _PLACED
        return int(self.blocks[found])

    def rest(self) -> _Waiting:
        """Those that still wait."""
        left = self.ranks != _PLACED
        return _Waiting(self.blocks[left], self.starts[left], self.ends[left], self.ranks[left])


class _Skyline:
    """Stretches (start, end, height) of kernel time, ascending and gapless; neighbours differ in height."""

    def __init__(self, start: int, end: int) -> None:
        self.stretches = [(start, end, 0)]

    def lowest(self) -> int:
        """Index of the lowest stretch, the earliest of several."""
        heights = [height for _, _, height in self.stretches]
        return heights.index(min(heights))

    def put(self, index: int, start: int, end: int, height: int) -> None:
        """Raise [start, end) inside a stretch."""
        first, last, floor = self.stretches[index]
        pieces = [(first, start, floor), (start, end, height), (end, last, floor)]
        self._replace(index, index + 1, [piece for piece in pieces if piece[0] < piece[1]])

    def raise_to_neighbour(self, index: int) -> None:
        """Lift a stretch to its lower neighbour."""
        neighbours = [self.stretches[at][2] for at in (index - 1, index + 1) if 0 <= at < len(self.stretches)]
        start, end, _ = self.stretches[index]
        self._replace(index, index + 1, [(start, end, min(neighbours))])

    def _replace(self, first: int, last: int, pieces: list[tuple[int, int, int]]) -> None:
        """Put pieces in place of stretches [first, last) and join neighbours of equal height."""
        first, last = max(first - 1, 0), min(last + 1, len(self.stretches))
        around = self.stretches[first:last]
        before = [around[0]] if first < last and around[0][1] <= pieces[0][0] else []
        after = [around[-1]] if around and around[-1][0] >= pieces[-1][1] else []
        joined: list[tuple[int, int, int]] = []
        for stretch in before + pieces + after:
            start = joined.pop()[0] if joined and joined[-1][2] == stretch[2] else stretch[0]
            joined.append((start, *stretch[1:]))
        self.stretches[first:last] = joined
