"""Rounds of all-fast steps: those in which others held the cores are repeated while patience lasts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import small_step

from autotm.kernels.library import KernelLibrary
from autotm.model.cores import Round, Watch
from autotm.runtime import all_fast
from autotm.runtime.all_fast import Effort, time_all_fast

SECOND = 10**9
EFFORT = Effort(min_rounds=3, max_rounds=20, seconds=5.0, spread=0.0, patience_s=6.0)


@dataclass
class Clock:
    """A step takes a second of made-up time, every other one a tenth more."""

    now_ns: int = 0
    steps: int = 0

    def step(self) -> None:
        self.steps += 1
        self.now_ns += SECOND + self.steps % 2 * SECOND // 10

    def instrumented_step(self) -> list[int]:
        self.now_ns += SECOND
        return [SECOND]


def rounds(
    monkeypatch: pytest.MonkeyPatch, disturbed: list[bool], effort: Effort = EFFORT
) -> tuple[list[all_fast._Round], bool, int]:
    """What a machine gives that is disturbed in some rounds, whether it is marked, and how many rounds were run."""
    clock, turns, counted = Clock(), itertools.cycle(disturbed), itertools.count()

    class Judge(Watch):
        def timed(self, run):  # type: ignore[no-untyped-def]
            next(counted)
            start_ns, result = clock.now_ns, run()
            wall_ns = clock.now_ns - start_ns
            return Round(result, wall_ns if next(turns) else 0, wall_ns)

    monkeypatch.setattr(all_fast, "perf_counter_ns", lambda: clock.now_ns)
    found, is_marked = all_fast._rounds([clock], Judge((0,), effort.patience_s), effort)  # type: ignore[list-item]
    return found, is_marked, next(counted)


def test_rounds_go_on_for_the_seconds_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, is_marked, ran = rounds(monkeypatch, [False])
    assert (len(found), is_marked, ran) == (3, False, 3), "a little more than two seconds each"


def test_disturbed_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found, is_marked, ran = rounds(monkeypatch, [True, False])
    assert (len(found), is_marked, ran) == (3, False, 6)


def test_where_others_never_leave_all_count_and_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, is_marked, ran = rounds(monkeypatch, [True])
    assert (len(found), is_marked, ran) == (3, True, 3)


def test_enough_good_rounds_are_sound_though_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    effort = replace(EFFORT, seconds=100.0)
    found, is_marked, ran = rounds(monkeypatch, [False] * 4 + [True] * 1000, effort)
    assert (len(found), is_marked) == (4, False)
    assert ran == 4 + 12, "three times as long as the good ones took"


def test_steady_steps_are_done_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds(monkeypatch, [False], replace(EFFORT, seconds=100.0, spread=0.1))[2] == EFFORT.min_rounds


def test_a_round_is_the_step_and_one_of_each_way(library: KernelLibrary) -> None:
    graph = small_step.graph()
    effort = Effort(4, 4, 0.0, 0.0, patience_s=1.0)
    found = time_all_fast((graph, graph), library, small_step.machine(), effort, small_step.DEVICES)
    assert found.step_ns.shape == (4,)
    assert [one.shape for one in found.kernels_ns] == [(4, len(graph.kernels))] * 2
    assert all(np.all(one > 0) for one in found.kernels_ns)
    assert not found.disturbed
