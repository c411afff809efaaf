"""What time a sweep over limits has, shared out among them."""

from __future__ import annotations

import time

_SHARE = 2.0
"""What one limit may take, in equal shares of the time left: most need little of theirs, and the rest goes on."""
_LEAST = 0.5
"""What each limit gets in any case, in equal shares of all the time: one that took too long costs the others little."""


class Allowance:
    """Gives each of several limits its part of the time that they have together.

    Args:
        total_s: seconds for all; infinite where only each limit's own time is limited.
        count: limits.
        begun_s: reading of `time.perf_counter` from which on they have it; now, if not given.
    """

    def __init__(self, total_s: float, count: int, begun_s: float | None = None) -> None:
        self._end_s = (time.perf_counter() if begun_s is None else begun_s) + total_s
        self._least_s = _LEAST * total_s / max(1, count)
        self._count = count

    def next_s(self) -> float:
        """Seconds for the next limit."""
        left_s = max(0.0, self._end_s - time.perf_counter())
        share, self._count = min(1.0, _SHARE / (self._count + 1)), max(1, self._count - 1)
        return max(self._least_s, left_s * share)
