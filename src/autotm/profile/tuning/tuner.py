"""`rule tune`: a search for better schedules of a step's kernels; each outcome is stored as soon as it is there."""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotm.kernels.library import pinned
from autotm.kernels.making import UnusableScheduleError, compiled, identity, replay, require_packages, search
from autotm.lower import DistinctKernel, ScheduledStep, distinct_kernels
from autotm.model.files import BadInputError
from autotm.model.machine import Machine, Watch
from autotm.model.measurement import Timing, TunedKernel, TuningReport
from autotm.profile.store import Entry, ScheduleTable, Where
from autotm.profile.timing import ProfileOptions, track
from autotm.profile.tuning.coverage import shorten
from autotm.profile.tuning.tuning_bench import Schedules, TuningBench, agree

log = logging.getLogger(__name__)

FINALISTS = 3
"""So many of the fastest candidates are measured once more, beside our own schedule."""
"""How often a disturbed comparison is made."""


@dataclass(frozen=True)
class TuneOptions:
    """How kernels are tuned.

    Attributes:
        trials: schedules tried for each kernel.
        min_gain: a tuned schedule is taken where ours takes longer by more than this share.
        kernels: only kernels whose operation matches this pattern, e.g. `conv2d*`.
    """

    trials: int = 64
    min_gain: float = 0.03
    kernels: str = "*"


@dataclass(frozen=True)
class _Session:
    """All that tuning a kernel needs."""

    step: ScheduledStep
    target: Any
    machine: Machine
    where: Where
    table: ScheduleTable
    options: TuneOptions
    timing: ProfileOptions


def tune_kernels(
    step: ScheduledStep,
    target: Any,
    machine: Machine,
    table: ScheduleTable,
    options: TuneOptions,
    timing: ProfileOptions,
) -> TuningReport:
    """Search schedules for the kernels of `step` that have none, heaviest first; killed, it goes on where it was.

    A known schedule that was measured beside an older one of ours, or on another processor, is measured again before
    anything is searched.

    Args:
        step: scheduled without tuned schedules.
        target: the TVM target it was scheduled for.
        machine: says threads and cores.
        table: takes the outcomes.
        options: how to tune.
        timing: how to time, as in a profile; its seed is the search's too.

    Raises:
        AutotmError: packages for the search are missing, or kernels run on fewer threads than asked.
        BadInputError: no kernel matches the pattern.
    """
    require_packages()
    session = _Session(step, target, machine, Where.of(machine, target), table, options, timing)
    wanted = matching(distinct_kernels(step), options.kernels)
    known = table.here(session.where)
    missing = [item for item in wanted if not _is_settled(known.get(item.workload), item, target)]
    log.info("%d distinct kernels, %d of them tuned before", len(wanted), len(wanted) - len(missing))
    for item in track(missing, "tuning kernels", len(missing)):
        entry = _tune(session, item, known.get(item.workload))
        table.put(item.workload, session.where, entry)
        log.info("%s: %s", shorten(item.text), _verdict(entry, options.min_gain))
    known = table.here(session.where)
    rows = tuple(_row(item, known[item.workload], options.min_gain) for item in wanted)
    return TuningReport(step.graph.network, step.graph.scale, rows)


def matching(kernels: tuple[DistinctKernel, ...], pattern: str) -> list[DistinctKernel]:
    """Those whose operation matches a shell pattern.

    Raises:
        BadInputError: none does.
    """
    found = [item for item in kernels if fnmatch.fnmatchcase(item.scheduled.op, pattern)]
    if not found:
        known = ", ".join(sorted({item.scheduled.op for item in kernels}))
        raise BadInputError(f"kernels: no kernel matches {pattern!r} (known: {known})")
    return found


def _is_settled(entry: Entry | None, item: DistinctKernel, target: Any) -> bool:
    return entry is not None and entry.own_identity == identity(item.scheduled.func, target)


def _tune(session: _Session, item: DistinctKernel, old: Entry | None) -> Entry:
    """Measure what is known, then search unless that is faster already."""
    bench = TuningBench(session.step.graph, item.example, session.timing)
    own = (item.scheduled, compiled(item.scheduled, session.target))
    if old is None:
        old = session.table.elsewhere(session.where).get(item.workload)
    if old is not None and old.trace is not None:
        again = _judge(session, item, bench, own, [old.trace], old.trials)
        if again.is_faster(session.options.min_gain):
            return again
    with pinned(session.machine):
        own_s = bench.seconds(own, limit_s=1.0)

    def measure(kernel: Any, module: Any) -> float:
        with pinned(session.machine):
            return bench.seconds((kernel, module), own_s)

    found = search(
        item.function,
        item.scheduled,
        session.target,
        session.machine.threads,
        session.options.trials,
        session.timing.seed,
        len(os.sched_getaffinity(0)),
        measure,
    )
    traces = list(dict.fromkeys(candidate.trace for candidate in found))[:FINALISTS]
    return _judge(session, item, bench, own, traces, session.options.trials)


def _judge(
    session: _Session, item: DistinctKernel, bench: TuningBench, own: Schedules, traces: list[str], trials: int
) -> Entry:
    """Measure the schedules that compute the right results in turn with our own; the fastest is the outcome."""
    with pinned(session.machine):
        finalists = dict(_correct(session, item, bench, own, traces))
        own_time, *times = _compare(session, bench, [own, *finalists.values()])
    own_identity = identity(item.scheduled.func, session.target)
    if not finalists:
        return Entry(item.scheduled.op, None, own_identity, None, own_time.median_ns, trials)
    best, trace = min(zip(times, finalists, strict=True), key=lambda pair: (pair[0].min_ns, pair[1]))
    tuned_ns, own_ns = least_gain(best, own_time)
    return Entry(item.scheduled.op, trace, own_identity, tuned_ns, own_ns, trials)


def _compare(session: _Session, bench: TuningBench, schedules: list[Schedules]) -> list[Timing]:
    """Measure, again while other processes hold the cores."""
    watch = Watch(session.machine.cpus, session.timing.patience_s)
    times = watch.rounds(lambda: bench.compare(schedules), 1, schedules[0][0].op)[-1]
    if watch.disturbed:
        log.warning("other processes hold the cores; times of %s are too long", schedules[0][0].op)
    return times


def least_gain(tuned: Timing, own: Timing) -> tuple[int, int]:
    """Minima or medians of both, whichever shows the smaller gain: disturbances must not pass for one."""
    pairs = ((tuned.min_ns, own.min_ns), (tuned.median_ns, own.median_ns))
    return min(pairs, key=lambda pair: pair[1] / pair[0])


def _correct(
    session: _Session, item: DistinctKernel, bench: TuningBench, own: Schedules, traces: list[str]
) -> Iterator[tuple[str, Schedules]]:
    expected = bench.results(own)
    for trace in traces:
        try:
            kernel = replay(item.function, trace, item.scheduled)
            schedule = (kernel, compiled(kernel, session.target))
        except UnusableScheduleError as error:
            log.info("%s: a found schedule is left out: %s", item.text, error)
            continue
        if agree(bench.results(schedule), expected):
            yield trace, schedule
        else:
            log.warning("%s: a found schedule computes something else; it is left out", item.text)


def _verdict(entry: Entry, min_gain: float) -> str:
    if entry.tuned_ns is None:
        return f"own {entry.own_ns / 1e3:.1f} us, nothing found"
    chosen = "taken" if entry.is_faster(min_gain) else "own stays"
    return f"own {entry.own_ns / 1e3:.1f} us, tuned {entry.tuned_ns / 1e3:.1f} us: {chosen}"


def _row(item: DistinctKernel, entry: Entry, min_gain: float) -> TunedKernel:
    tuned_us = None if entry.tuned_ns is None else entry.tuned_ns / 1e3
    chosen = "tuned" if entry.is_faster(min_gain) else "own"
    return TunedKernel(item.scheduled.op, item.shapes, item.calls, entry.own_ns / 1e3, tuned_us, chosen, entry.trials)
