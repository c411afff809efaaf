"""When a tensor's asynchronous moves may be under way: stretches of kernels that last long enough.

Numbered as in `docs/formulation.md` §9.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from autotm.model.measurement import BesideKernels
from autotm.model.plan import WINDOW_HALVES
from autotm.model.step import Tier

Span = tuple[int, int]
"""Kernels [start, end)."""


@dataclass(frozen=True, slots=True)
class Window:
    """An asynchronous move that its engine works at for `work_ns`, at any time during kernels [start, end).

    It adds `added_us` to the step.
    """

    start: int
    end: int
    work_ns: int
    added_us: float = 0.0


class Clock:
    """Kernel time in whole nanoseconds (A1), and the windows that moves may have."""

    def __init__(self, beside: BesideKernels) -> None:
        self.kernel_ns = beside.kernel_ns
        self._beside = beside
        self._until = beside.until_ns

    def write_windows(
        self, first: int, end: int, size_bytes: int, transfer_us: float, blocking_us: float
    ) -> tuple[Window, ...]:
        """(A3) Windows from the beginning of the gap [first, end), none beyond its middle; the shortest first."""
        ends = {bisect_left(self._until, self._until[first] + need) for need in _least_ns(transfer_us)}
        middle = self._middle(first, end)
        spans = [(first, stop) for stop in sorted(ends) if stop <= middle]
        return self._worthwhile(Tier.PMEM, size_bytes, spans, blocking_us)

    def read_windows(
        self, first: int, end: int, size_bytes: int, transfer_us: float, blocking_us: float
    ) -> tuple[Window, ...]:
        """(A3) Windows to the end of the gap [first, end), none before its middle; the shortest first."""
        starts = {bisect_right(self._until, self._until[end] - need) - 1 for need in _least_ns(transfer_us)}
        middle = self._middle(first, end)
        spans = [(start, end) for start in sorted(starts, reverse=True) if start >= middle]
        return self._worthwhile(Tier.DRAM, size_bytes, spans, blocking_us)

    def _worthwhile(
        self, destination: Tier, size_bytes: int, spans: list[Span], blocking_us: float
    ) -> tuple[Window, ...]:
        """Windows that last as long as their move takes there, and in which it is cheaper than a blocking one."""
        windows = (
            Window(
                *span,
                self._beside.work_ns(destination, size_bytes, *span),
                self._beside.added_us(destination, size_bytes, *span),
            )
            for span in spans
        )
        return tuple(
            window
            for window in windows
            if window.work_ns <= self._until[window.end] - self._until[window.start] and window.added_us < blocking_us
        )

    def _middle(self, first: int, end: int) -> int:
        """(A2) The first kernel before which at least half of the gap's time has passed."""
        return bisect_left(self._until, (self._until[first] + self._until[end] + 1) // 2, first)


def _least_ns(transfer_us: float) -> list[int]:
    """How long windows last at least."""
    alone_ns = math.ceil(1e3 * transfer_us)
    return [(half * alone_ns + 1) // 2 for half in WINDOW_HALVES]
