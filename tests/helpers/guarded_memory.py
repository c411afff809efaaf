"""Operands in one piece of memory with canaries before, between and behind them: what a kernel wrote, to the byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

GUARD_BYTES = 4096
_ALIGNMENT = 64
_PAGE = 4096


class GuardedMemory:
    """Operands at multiples of 64 bytes, at least `GUARD_BYTES` apart; random bytes everywhere else."""

    def __init__(self, operands: Sequence[tuple[Sequence[int], str]], shared: Mapping[int, int] | None = None) -> None:
        """Lay out operands of some shapes and types; `shared` says which slot lies in the memory of which other."""
        self._spans: list[tuple[int, int]] = []
        self.arrays: list[np.ndarray] = []
        end = GUARD_BYTES
        for shape, dtype in operands:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._spans.append((end, end + size))
            # An operand ends anywhere in a line: the gap to the next one is at least a guard zone, and odd.
            end = -(-(end + size + GUARD_BYTES) // _ALIGNMENT) * _ALIGNMENT
        raw = np.empty(end + GUARD_BYTES + _PAGE, np.uint8)
        begin = -raw.ctypes.data % _PAGE
        self._bytes = raw[begin : begin + end + GUARD_BYTES]
        # After alignment: what a stray write changes must not depend on where the memory lies.
        self._bytes[:] = np.random.default_rng(0).integers(0, 256, len(self._bytes), np.uint8)
        for slot, other in (shared or {}).items():
            self._spans[slot] = self._spans[other]
        for (shape, dtype), (first, last) in zip(operands, self._spans, strict=True):
            self.arrays.append(self._bytes[first:last].view(dtype).reshape(shape))
        self._before = self._bytes.copy()

    def remember(self) -> None:
        """What is in memory now is what must stay there."""
        self._before = self._bytes.copy()

    def strays(self, writable: Sequence[int]) -> list[str]:
        """Where memory changed since then, other than in `writable` slots; in words."""
        changed = self._bytes != self._before
        for slot in writable:
            first, last = self._spans[slot]
            changed[first:last] = False
        return [self._place(int(at)) for at in np.flatnonzero(changed)[:5]]

    def _place(self, at: int) -> str:
        slot = min(range(len(self._spans)), key=lambda slot: self._distance(slot, at))
        first, last = self._spans[slot]
        if first <= at < last:
            return f"operand {slot}, byte {at - first}"
        return f"{first - at} bytes below operand {slot}" if at < first else f"{at - last} bytes beyond operand {slot}"

    def _distance(self, slot: int, at: int) -> int:
        first, last = self._spans[slot]
        return max(first - at, at - last + 1, 0)
