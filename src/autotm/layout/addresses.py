"""Addresses of stays while a few of them are exchanged for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autotm.layout.blocks import Blocks, Ints
from autotm.model.plan import Stay


class Addresses:
    """Offsets and sizes of stays within a limit; what others need, they go around.

    Attributes:
        left_out: stays that got none.
    """

    def __init__(self, places: Mapping[Stay, tuple[int, int]], left_out: Sequence[Stay], limit_bytes: int) -> None:
        self.left_out = left_out
        self._places = dict(places)
        self._limit_bytes = limit_bytes

    @classmethod
    def of(cls, stays: Sequence[Stay], blocks: Blocks, offsets: Ints, limit_bytes: int) -> Addresses:
        """The offsets of stays as far as they are within the limit."""
        places = dict(zip(stays, zip(offsets.tolist(), blocks.sizes.tolist(), strict=True), strict=True))
        within = {stay: place for stay, place in places.items() if sum(place) <= limit_bytes}
        return cls(within, [stay for stay in stays if stay not in within], limit_bytes)

    def copy(self) -> Addresses:
        """The same, to be changed by itself."""
        return Addresses(self._places, self.left_out, self._limit_bytes)

    def __contains__(self, stay: Stay) -> bool:
        return stay in self._places

    def remove(self, stay: Stay) -> None:
        """Forget a stay, whether it has an offset or not."""
        self._places.pop(stay, None)

    def has_hole(self, stay: Stay, size_bytes: int) -> bool:
        """Whether `put` would find an offset."""
        return self._lowest(stay, size_bytes) + size_bytes <= self._limit_bytes

    def put(self, stay: Stay, size_bytes: int) -> bool:
        """Give a stay the lowest offset at which nothing is in its way; `False` if none is within the limit."""
        offset = self._lowest(stay, size_bytes)
        if offset + size_bytes > self._limit_bytes:
            return False
        self._places[stay] = offset, size_bytes
        return True

    def _lowest(self, stay: Stay, size_bytes: int) -> int:
        meeting = [place for other, place in self._places.items() if other.start < stay.end and stay.start < other.end]
        lowest = 0
        for offset, size in sorted(meeting):
            if offset - lowest >= size_bytes:
                break
            lowest = max(lowest, offset + size)
        return lowest

    def offsets(self, stays: Sequence[Stay]) -> Ints:
        """Of stays that all have one."""
        return np.array([self._places[stay][0] for stay in stays], np.int64)
