"""When a tensor's asynchronous moves may be under way: stretches of kernels that last long enough.

Numbered as in `docs/formulation.md` §9.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate

from autotm.model.measurement import Profile
from autotm.model.plan import WINDOW_HALVES
from autotm.model.step import Graph

Span = tuple[int, int]
"""Kernels [start, end)."""


@dataclass(frozen=True, slots=True)
class Window:
    """An asynchronous move that its engine works at for `work_ns`, at any time during kernels [start, end)."""

    start: int
    end: int
    work_ns: int


class Clock:
    """(A1) Kernel time in whole nanoseconds: every operand fast, every kernel as its fastest implementation."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.kernel_ns = tuple(round(1e3 * profile.least_us(kernel)) for kernel in graph.kernels)
        self._until = [0, *accumulate(self.kernel_ns)]

    def write_windows(self, first: int, end: int, transfer_us: float) -> tuple[Window, ...]:
        """(A3) Windows from the beginning of the gap [first, end), none beyond its middle; the shortest first."""
        work_ns = math.ceil(1e3 * transfer_us)
        ends = {bisect_left(self._until, self._until[first] + need) for need in _least_ns(work_ns)}
        middle = self._middle(first, end)
        return tuple(Window(first, stop, work_ns) for stop in sorted(ends) if stop <= middle)

    def read_windows(self, first: int, end: int, transfer_us: float) -> tuple[Window, ...]:
        """(A3) Windows to the end of the gap [first, end), none before its middle; the shortest first."""
        work_ns = math.ceil(1e3 * transfer_us)
        starts = {bisect_right(self._until, self._until[end] - need) - 1 for need in _least_ns(work_ns)}
        middle = self._middle(first, end)
        return tuple(Window(start, end, work_ns) for start in sorted(starts, reverse=True) if start >= middle)

    def _middle(self, first: int, end: int) -> int:
        """(A2) The first kernel before which at least half of the gap's time has passed."""
        return bisect_left(self._until, (self._until[first] + self._until[end] + 1) // 2, first)


def _least_ns(work_ns: int) -> list[int]:
    """How long windows last at least."""
    return [(half * work_ns + 1) // 2 for half in WINDOW_HALVES]
