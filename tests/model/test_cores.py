"""Rounds of measuring: which count, and when trying again ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotm.model.machine import cores
from autotm.model.machine.cores import DISTURBED, Watch, lost_ns

SECOND = 10**9


class Machine:
    """Cores that others hold in some rounds; a round takes a second of made-up time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disturbed: list[bool]) -> None:
        self.now = self.lost = self.rounds = 0
        self.disturbed = disturbed
        monkeypatch.setattr(cores, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(cores, "lost_ns", lambda _: self.lost)

    def round(self) -> int:
        self.lost += SECOND if self.disturbed[self.rounds % len(self.disturbed)] else 0
        self.now += SECOND
        self.rounds += 1
        return self.rounds


def test_rounds_go_on_until_enough_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, watch = Machine(monkeypatch, [True, True, False]), Watch((0, 1), 30.0)
    assert watch.rounds(machine.round, 3, "copies") == [3, 6, 9]
    assert watch.disturbed == []


def test_patience_ends_and_what_stayed_disturbed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, watch = Machine(monkeypatch, [True]), Watch((0, 1), 4.5)
    assert watch.rounds(machine.round, 3, "copies") == [1, 2, 3, 4, 5]
    assert watch.disturbed == ["copies"]
    assert watch.rounds(machine.round, 3, "kernels") == [6, 7, 8], "none is left for what comes after"
    assert watch.disturbed == ["copies", "kernels"]


def test_patience_lasts_three_times_as_long_as_the_good_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, watch = Machine(monkeypatch, [False] * 10 + [True] * 100), Watch((0, 1), 4.5)
    assert watch.rounds(machine.round, 10, "first") == list(range(1, 11))
    assert len(watch.rounds(machine.round, 1, "second")) == 30


def test_a_share_of_the_cores_may_be_lost() -> None:
    watch = Watch((0, 1), 30.0)
    assert watch.judge(round(2 * DISTURBED * SECOND), SECOND)
    assert not watch.judge(round(2 * DISTURBED * SECOND) + 1, SECOND)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting")
@pytest.mark.wall_clock
def test_a_neighbour_on_the_same_core_is_seen() -> None:
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    neighbour = subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(0, {cpu})
    try:
        time.sleep(0.3)
        lost, end = lost_ns((cpu,)), time.perf_counter() + 0.5
        while time.perf_counter() < end:
            pass
        assert lost_ns((cpu,)) - lost > 0.1 * SECOND
    finally:
        os.sched_setaffinity(0, before)
        neighbour.kill()
        neighbour.wait()
