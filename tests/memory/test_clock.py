"""Waiting to a deadline."""

import itertools
from time import perf_counter_ns

import pytest
from stand_in_clock import StandInClock

from autotm.memory import clock
from autotm.memory.clock import wait_until

TICK_NS, CALL_NS = 50, 1000


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    return StandInClock(TICK_NS, CALL_NS).put_into(monkeypatch, "memory.clock")


def test_never_returns_early() -> None:
    for delay_ns in (1_000, 100_000, 3_000_000):
        deadline = perf_counter_ns() + delay_ns
        wait_until(deadline)
        assert perf_counter_ns() >= deadline


def test_returns_at_the_first_reading_past_its_deadline(stand_in: StandInClock) -> None:
    for delay_ns in (10_020, 50_000, 3_000_001):
        deadline = stand_in.now_ns + delay_ns
        wait_until(deadline)
        assert deadline <= stand_in.now_ns < deadline + TICK_NS


def test_a_long_wait_lets_go_of_the_interpreter_until_its_last_stretch(stand_in: StandInClock) -> None:
    """Copies beside kernels need it: a loop without a system call would keep it for 5 ms at a time."""
    wait_until(1_000_000)
    calls = [0, *stand_in.called_at_ns]
    assert all(later - earlier <= CALL_NS + TICK_NS for earlier, later in itertools.pairwise(calls))
    assert 1_000_000 - clock._LAST_NS - CALL_NS <= calls[-1] < 1_000_000
    assert clock._LAST_NS <= 50_000


def test_a_past_deadline_is_seen_at_the_first_look(stand_in: StandInClock) -> None:
    stand_in.now_ns = 10**9
    wait_until(5)
    assert (len(stand_in.read_at_ns), stand_in.called_at_ns) == (2, [])
