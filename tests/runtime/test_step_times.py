"""Rounds of steps, several programs in turn with the all-fast one, and traced steps: each call has its place."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
import small_step
from small_programs import Trip, program

from autotm.kernels.library import KernelLibrary
from autotm.model.cores import Round, Watch
from autotm.model.errors import AutotmError
from autotm.model.limit import Counts
from autotm.model.program import KernelStep, StartMoveStep
from autotm.model.timeline import StepTrace
from autotm.runtime import all_fast
from autotm.runtime.all_fast import Effort, time_all_fast
from autotm.runtime.session import Session
from autotm.runtime.step_times import Contender, RunOptions, time_in_turn
from autotm.study.view.trace import trace_events, write_trace

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
    monkeypatch: pytest.MonkeyPatch, disturbed: list[bool], effort: Effort
) -> tuple[list[all_fast._Round], bool, int]:
    """The rounds kept on a machine disturbed in some, whether they are marked disturbed, and how many were run."""
    clock, turns, counted = Clock(), itertools.cycle(disturbed), itertools.count()

    class Judge(Watch):
        def timed(self, run):  # type: ignore[no-untyped-def]
            next(counted)
            start_ns, result = clock.now_ns, run()
            wall_ns = clock.now_ns - start_ns
            return Round(result, wall_ns if next(turns) else 0, wall_ns)

    monkeypatch.setattr(all_fast, "perf_counter_ns", lambda: clock.now_ns)
    kept, is_marked = all_fast._rounds([clock], Judge((0,), effort.patience_s), effort)  # type: ignore[list-item]
    return kept, is_marked, next(counted)


@pytest.mark.parametrize(
    ("disturbed", "effort", "counted", "is_marked", "ran"),
    [
        ([False], EFFORT, 3, False, 3),  # a little more than two seconds each
        ([True, False], EFFORT, 3, False, 6),
        ([True], EFFORT, 3, True, 3),  # where others never leave, all count
        # Three times as long as the good ones took; enough of these are sound though patience ends.
        ([False] * 4 + [True] * 1000, replace(EFFORT, seconds=100.0), 4, False, 4 + 12),
        ([False], replace(EFFORT, seconds=100.0, spread=0.1), EFFORT.min_rounds, False, EFFORT.min_rounds),  # steady
    ],
)
def test_rounds_go_on_for_the_seconds_asked_and_disturbed_ones_do_not_count(
    monkeypatch: pytest.MonkeyPatch, disturbed: list[bool], effort: Effort, counted: int, is_marked: bool, ran: int
) -> None:
    kept, *rest = rounds(monkeypatch, disturbed, effort)
    assert (len(kept), *rest) == (counted, is_marked, ran)


def test_a_round_is_the_step_and_one_of_each_way(library: KernelLibrary) -> None:
    graph = small_step.graph()
    effort = Effort(4, 4, 0.0, 0.0, patience_s=1.0)
    times = time_all_fast((graph, graph), library, small_step.machine(), effort, small_step.DEVICES)
    assert times.step_ns.shape == (4,)
    assert [one.shape for one in times.kernels_ns] == [(4, len(graph.kernels))] * 2
    assert all(np.all(one > 0) for one in times.kernels_ns)
    assert not times.disturbed


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
    all_fast = steps.contender("F", lambda _: 1.0).step
    options = RunOptions(min_steps=3, min_seconds=3.0)
    measured = time_in_turn([scatters[0], *steady, scatters[1]], all_fast, [0], options, is_warm=True)
    ran = "".join(steps.ran)
    assert ran.startswith("abFcd" * 3 + "aFd")
    assert set(ran[15:]) == set("aFd"), "the steady ones were known"
    for one, rounds in zip(measured, (ran.count("a"), 3, 3, ran.count("d")), strict=True):
        assert len(one.samples_s) == len(one.all_fast_s) == rounds


def test_each_is_made_warm_and_looked_at_where_its_first_step_is(steps: Steps) -> None:
    def noting(name: str) -> dict[str, Callable[[], None]]:
        return {when: partial(steps.ran.append, f"{when} {name}") for when in ("before_first", "after_first")}

    both = [steps.contender(name, lambda _: 1.0, **noting(name)) for name in "ab"]
    time_in_turn(both, steps.contender("F", lambda _: 1.0).step, [0], RunOptions(2, 2.0), is_warm=False)
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
    all_fast = steps.contender("F", lambda _: 1.0).step
    *failed, timed = time_in_turn(contenders, all_fast, [0], RunOptions(3, 3.0), is_warm=True)
    assert [str(one) for one in failed] == ["wrong", "wrong"]
    assert timed.samples_s == (1.0,) * 3
    assert "".join(steps.ran) == "aFc" + "cF" * 2


def test_a_disturbed_all_fast_step_spoils_the_round_of_all_and_a_disturbed_step_its_own(steps: Steps) -> None:
    steps.lost = lambda name: (name, steps.ran.count(name)) in {("F", 2), ("a", 3)}
    both = [steps.contender(name, lambda _: 1.0) for name in "ab"]
    a, b = time_in_turn(both, steps.contender("F", lambda _: 1.0).step, [0], RunOptions(3, 3.0), is_warm=True)
    assert (len(a.samples_s), a.disturbed) == (3, 2)
    assert (len(b.samples_s), b.disturbed) == (3, 1)


GRAPH = small_step.graph()
STRETCH = 200.0
ROUNDS = 3
PROGRAM = program(GRAPH, frozenset({"act"}), {"hidden": Trip(2, 5, 3, 4), "act2": Trip(5, 6)})


def session(library: KernelLibrary) -> Session:
    links = replace(small_step.links(), emulation_stretch=STRETCH)
    return Session(GRAPH, library, PROGRAM, Counts.INTERMEDIATES, small_step.machine(), links, small_step.DEVICES, 1)


@pytest.fixture(scope="module")
def trace(library: KernelLibrary) -> StepTrace:
    with closing(session(library)) as opened:
        traced = opened.trace(ROUNDS, 1.0)
        assert opened.steps >= 2 * ROUNDS + 1
    return traced


def test_calls_follow_each_other(trace: StepTrace) -> None:
    assert len(trace.marks_ns) == len(PROGRAM.steps)
    assert trace.marks_ns[0][0] == 0
    for marks in trace.marks_ns:
        assert list(marks) == sorted(marks)
    assert all(before[-1] == after[0] for before, after in pairwise(trace.marks_ns))
    assert len(trace.traced_s) == len(trace.plain_s) == ROUNDS
    assert trace.marks_ns[-1][-1] / 1e9 == sorted(trace.traced_s)[ROUNDS // 2]
    assert trace.overhead > -1


def test_a_kernel_with_slow_operands_is_followed_by_its_wait(trace: StepTrace) -> None:
    calls = {
        item.kernel: len(marks) - 1
        for item, marks in zip(PROGRAM.steps, trace.marks_ns, strict=True)
        if isinstance(item, KernelStep)
    }
    assert set(GRAPH.by_name["act"].users) <= {number for number, count in calls.items() if count == 2}
    assert set(calls.values()) == {1, 2}


def test_copies_begin_after_they_are_started_and_end_before_the_wait_does(trace: StepTrace) -> None:
    starts = [item for item in PROGRAM.steps if isinstance(item, StartMoveStep)]
    assert set(trace.copies) == {item.move for item in starts}
    for times in trace.copies.values():
        assert 0 < times.submitted_ns < times.begun_ns < times.ended_ns
        # The memory that is played begins at once, however late the thread that plays it wakes up.
        assert times.ended_ns - times.submitted_ns >= 0.5 * STRETCH * 32 * 64 * 4 / 2.5


def test_traced_steps_compute_the_step(library: KernelLibrary) -> None:
    with closing(session(library)) as traced, closing(session(library)) as plain:
        traced.trace(1, 1.0)
        for _ in range(traced.steps):
            plain.step()
        for name, value in plain.values().items():
            np.testing.assert_array_equal(traced.value(name), value)


def test_the_file_is_a_chrome_trace(trace: StepTrace, tmp_path: Path) -> None:
    source = {"machine": "test-1t", "threads": 1, "tier_reality": "emulated", "seed": 1}
    write_trace(tmp_path / "trace.json", GRAPH, PROGRAM, trace, source)
    document = json.loads((tmp_path / "trace.json").read_text())
    assert "MEASURED; slow memory EMULATED" in document["otherData"]["measured"]
    assert document["otherData"]["machine"] == "test-1t"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_trace(tmp_path / "trace.json", GRAPH, PROGRAM, trace, source | {"seed": float("nan")})
    events = document["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "t", "f"}
    assert all({"name", "ph", "pid"} <= set(event) for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    of_kernels = [event for event in spans if event["name"] in {kernel.name for kernel in GRAPH.kernels}]
    assert [event["name"] for event in of_kernels] == [kernel.name for kernel in GRAPH.kernels]
    assert sum(event["dur"] for event in spans if event["tid"] == 1) == pytest.approx(trace.marks_ns[-1][-1] / 1e3)
    for one, other in permutations(spans, 2):  # within each other or apart, to the last bit: viewers need that
        if one["tid"] == other["tid"] and one["ts"] < other["ts"] < one["ts"] + one["dur"]:
            assert other["ts"] + other["dur"] <= one["ts"] + one["dur"]
    for arrow in (event for event in events if event["ph"] in "stf"):
        own = [span for span in spans if span["tid"] == arrow["tid"]]
        held = any(span["ts"] <= arrow["ts"] <= span["ts"] + span["dur"] for span in own)
        assert held, f"{arrow} begins or ends in no span"


def test_spans_that_touch_do_not_overlap_by_rounding() -> None:
    """As viewers see it, who add begin and duration."""
    kernels = [item for item in PROGRAM.steps if isinstance(item, KernelStep)]
    program = replace(PROGRAM, steps=tuple(kernels[index % len(kernels)] for index in range(5000)))
    marks = list(accumulate((1 + (index * 7919) % 100_003 for index in range(5000)), initial=0))
    trace = StepTrace(tuple(pairwise(marks)), {}, (1.0,), (1.0,), disturbed=False)
    spans = [event for event in trace_events(GRAPH, program, trace, {}) if event["ph"] == "X"]
    assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(spans))
    assert sum(event["dur"] for event in spans) == pytest.approx(marks[-1] / 1e3)
