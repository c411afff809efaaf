"""Best-fit packing on a skyline (Sekiyama et al., 2018, arXiv:1804.10001, with other priorities too).

The skyline is the top of what is placed, over kernel time. The lowest stretch of it takes the unplaced block of highest
priority whose span lies inside the stretch; a stretch that no block fits into is raised to its lower neighbour.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotm.layout.blocks import Blocks, Ints


def skyline(blocks: Blocks, priority: npt.NDArray[np.float64]) -> Ints:
    """Offsets when the lowest stretch always takes the fitting block of highest `priority`."""
    offsets = np.zeros(len(blocks), np.int64)
    line = _Skyline(int(blocks.starts.min(initial=0)), int(blocks.ends.max(initial=0)))
    by_priority = np.argsort(-priority, kind="stable")
    starts, ends = blocks.starts[by_priority], blocks.ends[by_priority]
    waiting = np.ones(len(blocks), bool)
    left = len(blocks)
    while left:
        index = line.lowest()
        start, end, floor = line.stretches[index]
        fitting = waiting & (starts >= start) & (ends <= end)
        first = int(fitting.argmax())
        if not fitting[first]:
            line.raise_to_neighbour(index)
            continue
        block = int(by_priority[first])
        offsets[block] = floor
        waiting[first] = False
        left -= 1
        line.put(index, int(starts[first]), int(ends[first]), floor + int(blocks.sizes[block]))
        if 2 * left < len(waiting):
            by_priority, starts, ends, waiting = (array[waiting] for array in (by_priority, starts, ends, waiting))
    return offsets


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
