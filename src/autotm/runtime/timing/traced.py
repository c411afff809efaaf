"""When each call of a step begins and ends, and what it costs to know."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from autotm.memory import quiet_interpreter
from autotm.model.machine import Watch
from autotm.model.measurement import CopyTimes, StepTrace
from autotm.runtime.executor import Executor

_Round = tuple[int, list[int], dict[int, CopyTimes]]
"""Nanoseconds of a plain step, the marks of a traced one, and its asynchronous copies."""


def trace_steps(executor: Executor, cpus: Sequence[int], rounds: int, patience_s: float) -> tuple[StepTrace, int]:
    """Trace warm steps on `cpus`, each in turn with a plain one.

    Rounds in which others held the cores do not count and are repeated, until `patience_s` seconds are spent on them.

    Returns:
        The traced step whose length is the median, and how many steps were run for it.
    """
    ran = 1

    def run() -> _Round:
        nonlocal ran
        ran += 2
        start_ns = perf_counter_ns()
        executor.step()
        plain_ns = perf_counter_ns() - start_ns
        marks = executor.marked_step()
        return plain_ns, marks, _copies(executor, marks[0])

    watch = Watch(cpus, patience_s)
    with quiet_interpreter():
        executor.step()
        found = watch.rounds(run, rounds, "steps")
    found.sort(key=lambda one: one[1][-1] - one[1][0])
    _, marks, copies = found[(len(found) - 1) // 2]
    trace = StepTrace(
        tuple(tuple(mark - marks[0] for mark in marks[first : end + 1]) for first, end in executor.spans),
        copies,
        tuple((each[-1] - each[0]) / 1e9 for _, each, _ in found),
        tuple(plain_ns / 1e9 for plain_ns, _, _ in found),
        bool(watch.disturbed),
    )
    return trace, ran


def _copies(executor: Executor, begun_ns: int) -> dict[int, CopyTimes]:
    """The asynchronous copies of the step that began at `begun_ns`."""
    return {
        number: CopyTimes(copy.started_ns - begun_ns, copy.begun_ns - begun_ns, copy.ended_ns - begun_ns)
        for number, copy in executor.async_copies.items()
    }
