"""Waiting to a deadline with sub-microsecond error, as no sleep does."""

from __future__ import annotations

from time import perf_counter_ns


def wait_until(deadline_ns: int) -> None:
    """Busy-wait until `perf_counter_ns` reaches `deadline_ns`; returns at once when it has passed."""
    while perf_counter_ns() < deadline_ns:
        pass
