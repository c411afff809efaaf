"""Choices common to the schedules of memory-bound kernels: vector tiles, and what is worth more than one thread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm

from autotm.kernels.code.target import target_info

PARALLEL_BYTES = 128 << 10
"""Kernels that touch less than this stay on one thread: waking the others costs some microseconds."""

_VECTORS_PER_TILE = 4


@dataclass(frozen=True)
class Machine:
    """What the schedules of memory-bound kernels need to know: threads, and float32 lanes of a vector."""

    threads: int
    lanes: int

    @classmethod
    def of(cls, target: tvm.target.Target, threads: int) -> Machine:
        """The machine that `target` describes, used with `threads` threads."""
        return cls(threads, target_info(target).lanes)

    def is_parallel(self, touched_bytes: int) -> bool:
        """Whether a kernel that touches so many bytes is worth waking the other threads."""
        return self.threads > 1 and touched_bytes >= PARALLEL_BYTES

    def vector(self, extent: int) -> int:
        """Elements of a contiguous axis to handle as one vector: its largest divisor that a register holds."""
        return next(size for size in range(min(self.lanes, extent), 0, -1) if extent % size == 0)

    def tile(self, extent: int) -> int | None:
        """Elements of a contiguous axis to keep in registers: a divisor of `extent`, whole vectors if possible.

        None where no divisor fills a vector at least half: such an axis is best left to the compiler in one piece.
        """
        if extent <= self.lanes:
            return extent
        limit = min(extent, self.lanes * _VECTORS_PER_TILE)
        sizes = [size for size in range(1, limit + 1) if extent % size == 0 and self.vector(size) >= self.lanes // 2]
        return max(sizes, key=lambda size: (self.vector(size), size), default=None)


def divisor_near(extent: int, wanted: float) -> int:
    """The divisor of `extent` nearest to `wanted` by ratio."""
    small = [size for size in range(1, math.isqrt(extent) + 1) if extent % size == 0]
    divisors = small + [extent // size for size in small]
    return min(divisors, key=lambda size: max(size / wanted, wanted / size))
