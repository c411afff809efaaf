"""First-fit packing of byte intervals that live over half-open kernel spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """What is to be packed: block i takes `sizes[i]` bytes during kernels [starts[i], ends[i])."""

    sizes: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def peak_bytes(self) -> int:
        """Most bytes live during one kernel: no packing is smaller."""
        if not len(self):
            return 0
        change = np.zeros(int(self.ends.max()) + 1, np.int64)
        np.add.at(change, self.starts, self.sizes)
        np.add.at(change, self.ends, -self.sizes)
        return int(change.cumsum().max())


def first_fit(blocks: Blocks, order: Sequence[int]) -> Ints:
    """Offsets when blocks are placed in `order`, each at the lowest offset free during its whole span.

    Sizes that are multiples of the alignment give offsets that are. Takes O(n^2) element operations in NumPy.
    """
    placed = _Placed(blocks)
    offsets = np.zeros(len(blocks), np.int64)
    for block in order:
        offsets[block] = placed.lowest_offset(block)
        placed.add(block, int(offsets[block]))
    return offsets


class _Placed:
    """Blocks placed so far, ascending in offset."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._count = 0
        self._bottoms = np.zeros(len(blocks), np.int64)
        self._tops = np.zeros(len(blocks), np.int64)
        self._starts = np.zeros(len(blocks), np.int64)
        self._ends = np.zeros(len(blocks), np.int64)

    def lowest_offset(self, block: int) -> int:
        count = self._count
        in_the_way = self._starts[:count] < self._blocks.ends[block]
        in_the_way &= self._ends[:count] > self._blocks.starts[block]
        bottoms = self._bottoms[:count][in_the_way]
        if not len(bottoms):
            return 0
        tops = np.maximum.accumulate(self._tops[:count][in_the_way])
        floors = np.concatenate(([0], tops[:-1]))
        gaps = np.flatnonzero(bottoms - floors >= self._blocks.sizes[block])
        return int(floors[gaps[0]] if len(gaps) else tops[-1])

    def add(self, block: int, offset: int) -> None:
        at = int(np.searchsorted(self._bottoms[: self._count], offset))
        values = (offset, offset + self._blocks.sizes[block], self._blocks.starts[block], self._blocks.ends[block])
        for array, value in zip((self._bottoms, self._tops, self._starts, self._ends), values, strict=True):
            array[at + 1 : self._count + 1] = array[at : self._count]
            array[at] = value
        self._count += 1
