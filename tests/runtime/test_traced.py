"""A traced step is a step: every call has its place in time, copies beside kernels too."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import small_step
from small_programs import Trip, program

from autotm.kernels.library import KernelLibrary
from autotm.model.limit import Counts
from autotm.model.program import KernelStep, Program, StartMoveStep
from autotm.model.timeline import StepTrace
from autotm.runtime.session import Session
from autotm.study.view.trace import trace_events, write_trace

GRAPH = small_step.graph()
STRETCH = 200.0
ROUNDS = 3
PROGRAM = program(GRAPH, frozenset({"act"}), {"hidden": Trip(2, 5, 3, 4), "act2": Trip(5, 6)})


@pytest.fixture(scope="module")
def trace(library: KernelLibrary) -> StepTrace:
    with closing(session(library, PROGRAM)) as opened:
        found = opened.trace(ROUNDS, 1.0)
        assert opened.steps >= 2 * ROUNDS + 1
    return found


def session(library: KernelLibrary, made: Program) -> Session:
    links = replace(small_step.links(), emulation_stretch=STRETCH)
    return Session(GRAPH, library, made, Counts.INTERMEDIATES, small_step.machine(), links, small_step.DEVICES, 1)


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
    users = set(GRAPH.by_name["act"].users)
    slow_by_move = {number for number, count in calls.items() if count == 2}
    assert users <= slow_by_move
    assert set(calls.values()) == {1, 2}


def test_copies_begin_after_they_are_started_and_end_before_the_wait_does(trace: StepTrace) -> None:
    starts = [item for item in PROGRAM.steps if isinstance(item, StartMoveStep)]
    assert set(trace.copies) == {item.move for item in starts}
    for times in trace.copies.values():
        assert 0 < times.submitted_ns < times.begun_ns < times.ended_ns
        # The memory that is played begins at once, however late the thread that plays it wakes up.
        assert times.ended_ns - times.submitted_ns >= 0.5 * STRETCH * 32 * 64 * 4 / 2.5


def test_traced_steps_compute_the_step(library: KernelLibrary) -> None:
    with closing(session(library, PROGRAM)) as traced, closing(session(library, PROGRAM)) as plain:
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
    events = document["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "t", "f"}
    assert all({"name", "ph", "pid"} <= set(event) for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    of_kernels = [event for event in spans if event["name"] in {kernel.name for kernel in GRAPH.kernels}]
    assert [event["name"] for event in of_kernels] == [kernel.name for kernel in GRAPH.kernels]
    step_us = sum(event["dur"] for event in spans if event["tid"] == 1)
    assert step_us == pytest.approx(trace.marks_ns[-1][-1] / 1e3)
    assert_nested(spans)
    slices = {event["tid"]: [] for event in spans}
    for event in spans:
        slices[event["tid"]].append(event)
    for arrow in (event for event in events if event["ph"] in "stf"):
        holds = [span for span in slices[arrow["tid"]] if span["ts"] <= arrow["ts"] <= span["ts"] + span["dur"]]
        assert holds, f"{arrow} begins or ends in no span"


def assert_nested(spans: list[dict[str, float]]) -> None:
    """Spans of one thread lie within each other or apart, to the last bit: what viewers need to draw them."""
    for one in spans:
        for other in spans:
            if one["tid"] == other["tid"] and one["ts"] < other["ts"] < one["ts"] + one["dur"]:
                assert other["ts"] + other["dur"] <= one["ts"] + one["dur"]


def test_spans_that_touch_do_not_overlap_by_rounding() -> None:
    """As viewers see it, who add begin and duration."""
    kernels = [item for item in PROGRAM.steps if isinstance(item, KernelStep)]
    steps = tuple(kernels[index % len(kernels)] for index in range(5000))
    marks = [0]
    for index in range(len(steps)):
        marks.append(marks[-1] + 1 + (index * 7919) % 100_003)
    made = replace(PROGRAM, steps=steps)
    spans = trace_events(GRAPH, made, StepTrace(tuple(pairwise(marks)), {}, (1.0,), (1.0,), disturbed=False), {})
    found = [event for event in spans if event["ph"] == "X"]
    assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(found))
    assert sum(event["dur"] for event in found) == pytest.approx(marks[-1] / 1e3)
