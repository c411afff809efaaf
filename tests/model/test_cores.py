"""Rounds of measuring: which count, and when trying again ends."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from autotm.model import cores
from autotm.model.cores import DISTURBED, Watch, lost_ns

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


def test_what_is_lost_is_what_threads_waited_and_what_the_hypervisor_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task, schedstat in {"7": "900 40 3\n", "8": "800 2 1\n"}.items():
        (tmp_path / "proc/self/task" / task).mkdir(parents=True)
        (tmp_path / "proc/self/task" / task / "schedstat").write_text(schedstat, encoding="ascii")
    (tmp_path / "proc/self/task/9").mkdir()  # a thread that has ended meanwhile
    rows = [
        f"{name} 1 1 1 1 1 1 1 {stolen} 0 0\n"
        for name, stolen in (("cpu", 99), ("cpu0", 5), ("cpu1", 7), ("cpu10", 11))
    ]
    (tmp_path / "proc/stat").write_text("".join(rows), encoding="ascii")
    monkeypatch.setattr(cores, "Path", lambda path: tmp_path / path.removeprefix("/"))
    tick_ns = SECOND // os.sysconf("SC_CLK_TCK")
    assert lost_ns((0, 1)) == 42 + 12 * tick_ns
    assert lost_ns((10,)) == 42 + 11 * tick_ns
    (tmp_path / "proc/stat").unlink()
    assert lost_ns((0, 1)) == 42, "a kernel that does not count says nothing"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting")
def test_a_neighbour_on_the_same_core_is_seen() -> None:
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    neighbour = subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(0, {cpu})
    try:
        lost, times = lost_ns((cpu,)), displaced()
        while displaced() < times + 3:
            pass
        assert lost_ns((cpu,)) > lost
    finally:
        os.sched_setaffinity(0, before)
        neighbour.kill()
        neighbour.wait()


def displaced() -> int:
    """How often this thread had to leave its core to others."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
