"""Rounds of all-fast steps, and several programs in turn with one: who runs when, and when each has had enough."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import small_step

from autotm.kernels.library import KernelLibrary
from autotm.model.cores import Round, Watch
from autotm.model.errors import AutotmError
from autotm.runtime import all_fast
from autotm.runtime.all_fast import Effort, time_all_fast
from autotm.runtime.step_times import Contender, RunOptions, StepTimes, time_in_turn

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


class Steps:
    """Steps by name that take times of their own, noted as they run; no clock is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.walls_s: dict[str, Callable[[int], float]] = {}
        self.lost: Callable[[str], bool] = lambda _: False
        monkeypatch.setattr(Watch, "timed", lambda _, run: self._timed(run))

    def _timed(self, run: Callable[[], None]) -> Round[None]:
        run()
        name = self.ran[-1]
        wall_ns = round(self.walls_s[name](self.ran.count(name)) * 1e9)
        return Round(None, wall_ns if self.lost(name) else 0, wall_ns)

    def contender(self, name: str, wall_s: Callable[[int], float], **hooks: Callable[[], None]) -> Contender:
        """The number of a step, from 1, decides its time."""
        self.walls_s[name] = wall_s
        return Contender(lambda: self.ran.append(name), **hooks)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_all_fast_runs_in_the_midst_and_who_is_known_drops_out(steps: Steps) -> None:
    scatters = [steps.contender(name, lambda number: 1.0 + 0.3 * (number % 2)) for name in "ad"]
    steady = [steps.contender(name, lambda _: 1.0) for name in "bc"]
    all_fast = steps.contender("F", lambda _: 1.0)
    options = RunOptions(min_steps=3, min_seconds=3.0)
    found = time_in_turn([scatters[0], *steady, scatters[1]], all_fast, [0], options, is_warm=True)
    ran = "".join(steps.ran)
    assert ran.startswith("abFcd" * 3 + "aFd")
    assert set(ran[15:]) == set("aFd"), "the steady ones were known"
    for one, rounds in zip(found, (ran.count("a"), 3, 3, ran.count("d")), strict=True):
        assert isinstance(one, StepTimes)
        assert len(one.samples_s) == len(one.all_fast_s) == rounds


def test_each_is_made_warm_and_looked_at_where_its_first_step_is(steps: Steps) -> None:
    hooks = [
        {
            when: lambda name=name, when=when: steps.ran.append(f"{when} {name}")
            for when in ("before_first", "after_first")
        }
        for name in "ab"
    ]
    both = [steps.contender(name, lambda _: 1.0, **hook) for name, hook in zip("ab", hooks, strict=True)]
    time_in_turn(both, steps.contender("F", lambda _: 1.0), [0], RunOptions(2, 2.0), is_warm=False)
    first = ["before_first a", "a", "after_first a", "F", "F", "before_first b", "b", "after_first b"]
    assert steps.ran == [*first, "a", "F", "b"], "the all-fast step was cold before"


def test_who_fails_drops_out_and_is_told(steps: Steps) -> None:
    def fail() -> None:
        raise AutotmError("wrong")

    contenders = [
        steps.contender("a", lambda _: 1.0, after_first=fail),
        steps.contender("b", lambda _: 1.0, before_first=fail),
        steps.contender("c", lambda _: 1.0),
    ]
    found = time_in_turn(contenders, steps.contender("F", lambda _: 1.0), [0], RunOptions(3, 3.0), is_warm=True)
    assert [str(one) for one in found[:2]] == ["wrong", "wrong"]
    assert isinstance(found[2], StepTimes)
    assert found[2].samples_s == (1.0,) * 3
    assert "".join(steps.ran) == "aFc" + "cF" * 2


def test_a_disturbed_all_fast_step_spoils_the_round_of_all_and_a_disturbed_step_its_own(steps: Steps) -> None:
    steps.lost = lambda name: (name, steps.ran.count(name)) in {("F", 2), ("a", 3)}
    both = [steps.contender(name, lambda _: 1.0) for name in "ab"]
    a, b = time_in_turn(both, steps.contender("F", lambda _: 1.0), [0], RunOptions(3, 3.0), is_warm=True)
    assert isinstance(a, StepTimes)
    assert isinstance(b, StepTimes)
    assert (len(a.samples_s), a.disturbed) == (3, 2)
    assert (len(b.samples_s), b.disturbed) == (3, 1)
