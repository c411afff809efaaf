"""A search for better schedules of a step's kernels, and what the store has of a step."""

from __future__ import annotations

import fnmatch
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.kernels.compiler import UnusableScheduleError, choose, compiled, identity, replay, workspace_bytes
from autotm.kernels.library import KernelLibrary, aligned_empty, pinned
from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.kernels.search import require_packages, search
from autotm.lower.lowering import DistinctKernel, ScheduledStep, distinct_kernels
from autotm.memory.clock import quiet_interpreter
from autotm.model.cores import Watch
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Kernel, Operand
from autotm.model.kernel_studies import TunedKernel, TuningReport
from autotm.model.limit import storage_of
from autotm.model.machine import Machine
from autotm.model.profile import Profile, Timing
from autotm.profile.kernel_timing import MAX_COPIES, Call, Filler, ProfileOptions, time_interleaved
from autotm.profile.profiler import timing_context, track
from autotm.profile.store import Entry, KernelStore, ScheduleTable, Where

# Which kernels of a step have a timing, a tuned schedule, or neither.

_WIDEST, _GAP = 75, " ... "


@dataclass(frozen=True, slots=True)
class Coverage:
    """What store and profile know of one distinct kernel on a machine.

    Attributes:
        op: name of the kernel's main block.
        shapes: shape of each operand, inputs first, as text.
        calls: how often a step calls it.
        flop_share: its part of the step's floating-point operations.
        is_timed: whether its code was timed, within the step or alone.
        is_tuned: whether a schedule was searched for and measured beside our own present one.
        is_taken: whether what was found replaces our own.
    """

    op: str
    shapes: str
    calls: int
    flop_share: float
    is_timed: bool
    is_tuned: bool
    is_taken: bool


def coverage(
    step: ScheduledStep, target: Any, machine: Machine, store: KernelStore, min_gain: float, profile: Profile | None
) -> tuple[Coverage, ...]:
    """Every distinct kernel of `step` (scheduled without tuned schedules), heaviest first; `profile` is its own."""
    kernels = distinct_kernels(step)
    place = Where.of(machine, target)
    tuned = store.schedules.elsewhere(place) | store.schedules.here(place)
    usable, timed = store.schedules.usable(place, min_gain), store.timed(timing_context(machine))
    if profile is not None:
        timed |= {identity for identity, _, _ in profile.timings}
    total = max(1, sum(item.flops for item in kernels))

    def row(item: DistinctKernel) -> Coverage:
        own = identity(item.scheduled.func, target)
        taken = choose(item.function, item.scheduled, usable.get(item.workload), target)
        entry = tuned.get(item.workload)
        return Coverage(
            op=item.scheduled.op,
            shapes=item.shapes,
            calls=item.calls,
            flop_share=item.flops / total,
            is_timed=identity(taken.func, target) in timed,
            is_tuned=entry is not None and entry.own_identity == own,
            is_taken=taken is not item.scheduled,
        )

    return tuple(row(item) for item in kernels)


def table(rows: Iterable[Coverage]) -> str:
    """The rows as text in columns."""
    lines = [("op", "shapes", "calls", "FLOPs", "timing", "tuned")]
    lines += [
        (
            row.op,
            shorten(row.shapes),
            str(row.calls),
            f"{row.flop_share:.1%}",
            "yes" if row.is_timed else "-",
            _outcome(row),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def shorten(text: str) -> str:
    """A text without its middle where it is too long for a line; fused kernels may have dozens of operands."""
    half = (_WIDEST - len(_GAP)) // 2
    return text if len(text) <= _WIDEST else text[:half] + _GAP + text[-half:]


def _outcome(row: Coverage) -> str:
    if row.is_taken:
        return "taken"
    return "own is faster" if row.is_tuned else "-"


# Memory on which different schedules of one kernel are run and compared.

Array = npt.NDArray[Any]
Schedules = tuple[ScheduledKernel, Any]
"""A scheduled kernel and its machine code, a module with the symbol `main`."""

_RELATIVE, _OF_LARGEST = 1e-5, 2e-6
"""How far results of another order of sums may lie apart: of each value, and of the largest one.

Our kernels add up long sums in blocks. A schedule that adds 10^5 terms or more one by one rounds ten times as much, and
does not agree.
"""
_HOPELESS = 5.0
"""A candidate that takes this many times as long as the limit is not run again."""
_SCRAP = 0xFF


class TuningBench:
    """Several copies of a kernel's operands and workspaces, in which operands that share memory in the step share it.

    Args:
        graph, kernel: the step, and the call of it that is run.
        options: how to time, as in a profile.
    """

    def __init__(self, graph: Graph, kernel: Kernel, options: ProfileOptions) -> None:
        self.kernel = kernel
        self._options = options
        self._operands = (*kernel.inputs, *kernel.outputs)
        self._storages = [storage_of(graph, operand.tensor) for operand in self._operands]
        sizes: dict[str, int] = {}
        for storage, operand in zip(self._storages, self._operands, strict=True):
            sizes[storage] = max(sizes.get(storage, 0), _size(operand))
        total = max(1, sum(sizes.values()))
        copies = min(max(2, -(-options.rotation_bytes // total)), MAX_COPIES)
        self._memory = [{name: aligned_empty((size,), "uint8") for name, size in sizes.items()} for _ in range(copies)]
        self._spare = [aligned_empty((0,), "uint8") for _ in range(copies)]
        filler = Filler(options.seed)
        for copy, storages in enumerate(self._memory):
            for storage in storages.values():
                storage[:] = _SCRAP
            for view, operand in zip(self._operand_views(copy), kernel.inputs, strict=False):
                filler.fill(view, graph.by_name[operand.tensor].initial)
        self._start = {name: storage.copy() for name, storage in self._memory[0].items()}

    def seconds(self, schedule: Schedules, limit_s: float, repeats: int = 5) -> float:
        """The least time of a few calls; one that takes far longer than `limit_s` is called once."""
        calls = self._calls(schedule)
        found = _timed(calls[0])
        if found > _HOPELESS * limit_s:
            return found
        return min(_timed(calls[turn % len(calls)]) for turn in range(1, repeats + 1))

    def compare(self, schedules: list[Schedules]) -> list[Timing]:
        """Times of several schedules, measured in turn on the same memory."""
        calls = [self._calls(schedule) for schedule in schedules]
        with quiet_interpreter():
            return time_interleaved(calls, [None] * len(calls), self._options)

    def results(self, schedule: Schedules) -> list[Array]:
        """What one call computes from the same inputs as every other; its workspaces hold scrap before."""
        for name, storage in self._memory[0].items():
            storage[:] = self._start[name]
        views = self._views(schedule[0], 0)
        _bind(schedule, views)()
        first = len(self.kernel.inputs)
        return [views[slot].copy() for slot in range(first, first + len(self.kernel.outputs))]

    def _calls(self, schedule: Schedules) -> list[Call]:
        return [_bind(schedule, self._views(schedule[0], copy)) for copy in range(len(self._memory))]

    def _views(self, scheduled: ScheduledKernel, copy: int) -> list[Array]:
        return [*self._operand_views(copy), *self._workspaces(scheduled, copy)]

    def _operand_views(self, copy: int) -> list[Array]:
        return [
            self._memory[copy][storage][: _size(operand)].view(operand.dtype).reshape(operand.shape)
            for storage, operand in zip(self._storages, self._operands, strict=True)
        ]

    def _workspaces(self, scheduled: ScheduledKernel, copy: int) -> list[Array]:
        needed = workspace_bytes(scheduled) + 64 * len(scheduled.workspaces)
        if self._spare[copy].size < needed:
            self._spare[copy] = aligned_empty((needed,), "uint8")
        spare, start, views = self._spare[copy], 0, []
        spare[:needed] = _SCRAP
        for shape, dtype in scheduled.workspaces:
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            views.append(spare[start : start + size].view(dtype).reshape(shape))
            start += -(-size // 64) * 64
        return views


def agree(found: list[Array], expected: list[Array]) -> bool:
    """Whether two schedules computed the same but for the rounding of sums in another order."""
    return all(_agrees(one, other) for one, other in zip(found, expected, strict=True))


def _agrees(found: Array, expected: Array) -> bool:
    if expected.dtype.kind != "f":
        return np.array_equal(found, expected)
    largest = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    return np.allclose(found, expected, rtol=_RELATIVE, atol=_OF_LARGEST * largest, equal_nan=True)


def _bind(schedule: Schedules, views: list[Array]) -> Call:
    return KernelLibrary.in_memory(schedule[1]).bind("main", views)


def _timed(call: Call) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) * 1e-9


def _size(operand: Operand) -> int:
    return int(np.prod(operand.shape, dtype=np.int64)) * np.dtype(operand.dtype).itemsize


# `rule tune`: a search for better schedules of a step's kernels; each outcome is stored as soon as it is there.

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
