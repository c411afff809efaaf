"""Waiting to a deadline."""

from time import perf_counter_ns

import pytest

from autotm.memory.clock import wait_until


def test_never_returns_early() -> None:
    for delay_ns in (1_000, 100_000, 3_000_000):
        deadline = perf_counter_ns() + delay_ns
        wait_until(deadline)
        assert perf_counter_ns() >= deadline


@pytest.mark.wall_clock
def test_overshoots_by_microseconds_at_best() -> None:
    overshoots = []
    for _ in range(200):
        deadline = perf_counter_ns() + 50_000
        wait_until(deadline)
        overshoots.append(perf_counter_ns() - deadline)
    assert min(overshoots) < 5_000


@pytest.mark.wall_clock
def test_past_deadline_returns_at_once() -> None:
    elapsed = []
    for _ in range(20):
        start = perf_counter_ns()
        wait_until(start - 1_000_000_000)
        elapsed.append(perf_counter_ns() - start)
    assert min(elapsed) < 100_000
