"""Addresses of stays while a few of them are exchanged for others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np

from autotm.layout.blocks import Blocks, Ints
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
        """The offsets of stays as far as they are within the limit."""
        places = dict(zip(stays, zip(offsets.tolist(), blocks.sizes.tolist(), strict=True), strict=True))
        within = {stay: place for stay, place in places.items() if sum(place) <= limit_bytes}
        return cls(within, [stay for stay in stays if stay not in within], limit_bytes)

    def copy(self) -> Addresses:
        """The same, to be changed by itself."""
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
        """Whether `put` would find an offset."""
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
        """Of stays that all have one."""
        return self._extents[[self._rows[stay] for stay in stays], 0]
