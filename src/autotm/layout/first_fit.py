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
    placed = _Placed(len(blocks))
    offsets = np.zeros(len(blocks), np.int64)
    sizes, starts, ends = blocks.sizes.tolist(), blocks.starts.tolist(), blocks.ends.tolist()
    for block in order:
        offset = placed.lowest_offset(sizes[block], starts[block], ends[block])
        placed.add(offset, offset + sizes[block], starts[block], ends[block])
        offsets[block] = offset
    return offsets


class _Placed:
    """Blocks placed so far, ascending in offset."""

    def __init__(self, most: int) -> None:
        self._count = 0
        self._rows = np.zeros((4, most), np.int64)

    def lowest_offset(self, size: int, start: int, end: int) -> int:
        """The lowest offset with `size` bytes free during kernels [start, end)."""
        bottoms, tops, starts, ends = self._rows[:, : self._count]
        in_the_way = np.flatnonzero((starts < end) & (ends > start))
        if not len(in_the_way):
            return 0
        floors, ceilings = np.maximum.accumulate(tops[in_the_way]), bottoms[in_the_way]
        if ceilings[0] >= size:
            return 0
        fits = ceilings[1:] - floors[:-1] >= size
        first = int(fits.argmax()) if len(fits) else 0
        return int(floors[first] if len(fits) and fits[first] else floors[-1])

    def add(self, *block: int) -> None:
        """Take in a block: its offset, where it stops, and its first kernel and the one after its last."""
        at = int(self._rows[0, : self._count].searchsorted(block[0]))
        self._rows[:, at + 1 : self._count + 1] = self._rows[:, at : self._count]
        self._rows[:, at] = block
        self._count += 1
