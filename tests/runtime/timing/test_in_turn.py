"""Several programs beside one all-fast step: the order in which they run, and when each has had enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotm.model.cores import Round, Watch
from autotm.model.errors import AutotmError
from autotm.runtime.step_times import Contender, RunOptions, StepTimes, time_in_turn


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
