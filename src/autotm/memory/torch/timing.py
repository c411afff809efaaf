"""Times of calls on a device, and whether the host has the memory that is asked of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Protocol

import psutil

from autotm.model.files import AutotmError

_MOST_REPEATS = 100
_LEAST_REPEATS = 3
_SHORT_S = 2e-5


class Clock(Protocol):
    """Tells how long calls take."""

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """How long that many calls take, one after another."""


def median_ns(clock: Clock, call: Callable[[], object], least_s: float) -> tuple[int, int, int, int, int]:
    """Least, median, lower and upper quartile of repeated calls in nanoseconds, and how many were made."""
    first = clock.seconds(call, 1)
    # Calls shorter than the clock's own cost are timed several at once.
    together = max(1, min(1000, int(_SHORT_S / max(first, 1e-7))))
    times: list[float] = []
    while len(times) < _LEAST_REPEATS or (sum(times) * together < least_s and len(times) < _MOST_REPEATS):
        times.append(clock.seconds(call, together) / together)
    lower, middle, upper = statistics.quantiles(times, n=4)
    least, middle, lower, upper = (max(1, round(each * 1e9)) for each in (min(times), middle, lower, upper))
    return least, middle, lower, upper, len(times)


def require_host_memory(size_bytes: int) -> None:
    """Raises AutotmError where so much host memory is not to be had."""
    available = psutil.virtual_memory().available
    if size_bytes > available:
        raise AutotmError(
            f"offload: the plan needs {size_bytes} bytes of host memory, {available} are available; give a larger "
            "budget"
        )
