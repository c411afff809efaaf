"""How long a step takes as a whole and each of its kernels within it, and when each call begins and ends."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from autotm.model.cores import PATIENCE_S, Round, Watch, quiet_interpreter
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph
from autotm.model.program import KernelStep, MoveStep, WaitMoveStep
from autotm.model.timeline import CopyTimes, StepTrace
from autotm.runtime.executor import Executor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """How a program is verified and timed.

    Attributes:
        min_steps: timed steps at least.
        min_seconds: the timed steps together last at least this long.
        precision: further steps are timed, for up to three times `min_seconds`, until the standard error of the
            slow-down (their median over that of the all-fast steps timed in turn) is at most this share of it.
        verify_steps: steps compared with the plain step; they come first and also warm up, and the last of several may
            be the first that is timed. 0 leaves verification out.
        instrumented_steps: steps in which every kernel is timed; their median is recorded. Without poison, those that
            only verify are the first of them.
        side_by_side: time the all-fast step in turn with the planned one; needs memory for both.
        poison: during verification, overwrite memory with NaN as soon as its tensor is dead.
        patience_s: steps during which others held the cores are repeated for so long in all, or three times as long as
            the good ones took.
        seed: seed of the arguments.
    """

    min_steps: int = 3
    min_seconds: float = 2.0
    precision: float = 0.015
    verify_steps: int = 2
    instrumented_steps: int = 1
    side_by_side: bool = True
    poison: bool = False
    patience_s: float = PATIENCE_S
    seed: int = 0


_LONGER = 3
"""Rounds that scatter go on until they have lasted this many times as long as those that do not need to."""
_MANY = 1000
"""Rounds that need not go on however much they scatter."""
_DRAWS = 200
"""Times that rounds are drawn anew: enough for a standard error within 5 %."""


@dataclass(frozen=True)
class StepTimes:
    """Wall time of steps in seconds.

    Attributes:
        samples_s: of the steps that count.
        all_fast_s: of the same step with everything in fast memory, run in turn with those; empty where not asked for.
        disturbed: rounds in which others held the cores.
        disturbed_count: whether those count all the same, since too few others were left.
        waited_s, all_fast_waited_s: for each of those steps, how long threads of this process were kept from a core,
            added up over threads.
    """

    samples_s: tuple[float, ...]
    all_fast_s: tuple[float, ...] = ()
    disturbed: int = 0
    disturbed_count: bool = False
    waited_s: tuple[float, ...] = ()
    all_fast_waited_s: tuple[float, ...] = ()


Step = Callable[[], None]
Rounds = list[list[Round[None]]]


@dataclass(frozen=True)
class Contender:
    """Steps that are timed in turn with others.

    Attributes:
        step: runs one.
        before_first: called once before any is timed: what it does makes the step warm.
        after_first: called when the first is done. Neither's time counts.
    """

    step: Step
    before_first: Step | None = None
    after_first: Step | None = None


def time_steps(step: Step, all_fast: Step | None, cpus: Sequence[int], options: RunOptions) -> StepTimes:
    """Time warm steps as `time_in_turn`, one contender alone; the all-fast step is run once before.

    Raises:
        AutotmError: whatever a step raises.
    """
    (times,) = time_in_turn([Contender(step)], all_fast, cpus, options, is_warm=False)
    if isinstance(times, AutotmError):
        raise times
    return times


def time_in_turn(
    contenders: Sequence[Contender],
    all_fast: Step | None,
    cpus: Sequence[int],
    options: RunOptions,
    *,
    is_warm: bool,
) -> list[StepTimes | AutotmError]:
    """Time undisturbed, warm steps of each on `cpus`: as many, as long and as precisely as the options ask.

    A round is a step of each, with the all-fast one in their midst: all share whatever speed the machine has at the
    time. Who is known well enough drops out, and so does who fails. A step during which others held the cores, or whose
    all-fast step they disturbed, does not count and is repeated, until the options' patience is spent.

    Args:
        contenders: in the order in which they run.
        all_fast: what is run in turn with them, if anything.
        cpus: that all run on.
        options: of the run.
        is_warm: whether the all-fast step has been run before, in memory that it had.

    Returns:
        For each contender its times, or what it failed with.
    """
    series = [_Series(one, cpus, options) for one in contenders]
    reference = None
    if all_fast is not None:
        reference = _Series(Contender(all_fast, None if is_warm else all_fast), cpus, options)
    with quiet_interpreter():
        while going := [one for one in series if one.goes_on]:
            middle = (len(going) + 1) // 2
            for one in going[:middle]:
                one.time()
            if reference is not None:
                reference.time()
                if reference.error is not None:
                    raise reference.error
            for one in going[middle:]:
                one.time()
            for one in going:
                one.end_round(None if reference is None else reference.latest)
    return [one.error or one.times() for one in series]


class _Series:
    """The steps of a contender that were timed, and the all-fast ones in turn with them.

    Attributes:
        latest: the last one.
        error: what one failed with.
    """

    def __init__(self, contender: Contender, cpus: Sequence[int], options: RunOptions) -> None:
        self._contender, self._options = contender, options
        self._watch = Watch(cpus, options.patience_s)
        self._quiet: Rounds = []
        self._every: Rounds = []
        self.latest: Round[None] | None = None
        self.error: AutotmError | None = None

    @property
    def goes_on(self) -> bool:
        """Whether further steps are to be timed: there are too few, or they are too short or scatter too much."""
        quiet, options = self._quiet, self._options
        lasted_s = sum(steps[0].wall_ns for steps in quiet) / 1e9
        if self.error is not None or (self._watch.is_over and len(self._every) >= options.min_steps):
            return False
        if len(quiet) < options.min_steps or lasted_s < options.min_seconds:
            return True
        if len(quiet) >= _MANY or lasted_s >= _LONGER * options.min_seconds:
            return False
        return _standard_error(quiet) > options.precision

    def time(self) -> None:
        """Time a step; what it fails with is kept."""
        is_first, contender = self.latest is None, self._contender
        try:
            if is_first and contender.before_first is not None:
                contender.before_first()
            self.latest = self._watch.timed(contender.step)
            if is_first and contender.after_first is not None:
                contender.after_first()
        except AutotmError as error:
            self.error = error

    def end_round(self, all_fast: Round[None] | None) -> None:
        """Judge the step just timed, together with the all-fast one."""
        if self.error is None:
            steps = [one for one in (self.latest, all_fast) if one]
            self._every.append(steps)
            if self._watch.judge(sum(step.lost_ns for step in steps), sum(step.wall_ns for step in steps)):
                self._quiet.append(steps)

    def times(self) -> StepTimes:
        """Return the times that count: of undisturbed steps, or of all steps where undisturbed ones are too few."""
        quiet, every = self._quiet, self._every
        disturbed, are_counted = len(every) - len(quiet), len(quiet) < self._options.min_steps
        if are_counted:
            log.warning("others held the cores in %d of %d rounds: all count, and are too long", disturbed, len(every))
        planned, *others = zip(*(every if are_counted else quiet), strict=True)
        all_fast = others[0] if others else ()
        (walls_s, lost_s), (fast_walls_s, fast_lost_s) = (
            (tuple(step.wall_ns / 1e9 for step in steps), tuple(step.lost_ns / 1e9 for step in steps))
            for steps in (planned, all_fast)
        )
        return StepTimes(walls_s, fast_walls_s, disturbed, are_counted, lost_s, fast_lost_s)


def _standard_error(rounds: Rounds) -> float:
    return standard_error([[step.wall_ns for step in steps] for steps in rounds])


def standard_error(rounds: Sequence[Sequence[float]]) -> float:
    """Estimate the standard error of what records report, as a share of that number.

    Records report the ratio of the medians of both steps of a round, or the median of the only one. The error is found
    by drawing as many rounds as there are from them, again and again. The two steps of a round stay together, since
    they share the machine's speed. Rounds that something made long hardly move a median; a mean would wait for more.
    """
    count = len(rounds)
    if count < 2:  # noqa: PLR2004 - one has no spread
        return math.inf
    walls = np.asarray(rounds, float)
    drawn = np.random.default_rng(0).integers(count, size=(_DRAWS, count))
    medians = np.median(walls[drawn], axis=1)
    ratios = medians[:, 0] / medians[:, 1:].prod(axis=1)
    return float(np.std(ratios) / np.mean(ratios)) * math.sqrt(count / (count - 1))


@dataclass(frozen=True)
class StepParts:
    """Medians over instrumented steps, microseconds.

    Attributes:
        kernels_us: of every kernel by name, emulated delays included.
        stall_us: of all waits for asynchronous moves together.
        moves_us: of all blocking moves together.
    """

    kernels_us: dict[str, float]
    stall_us: float
    moves_us: float = 0.0


def time_parts(graph: Graph, executor: Executor, steps: int, passes: Sequence[Sequence[int]] = ()) -> StepParts:
    """Compute median times of the parts of `steps` instrumented steps, among them `passes`, which ran already."""
    with quiet_interpreter():
        every = [*passes, *(executor.instrumented_step() for _ in range(steps - len(passes)))]
    medians = [statistics.median(series) / 1e3 for series in zip(*every, strict=True)]
    parts = list(zip(executor.program.steps, medians, strict=True))
    return StepParts(
        {graph.kernels[step.kernel].name: median for step, median in parts if isinstance(step, KernelStep)},
        sum(median for step, median in parts if isinstance(step, WaitMoveStep)),
        sum(median for step, median in parts if isinstance(step, MoveStep)),
    )


# When each call of a step begins and ends, and what it costs to know.


def trace_steps(executor: Executor, cpus: Sequence[int], rounds: int, patience_s: float) -> tuple[StepTrace, int]:
    """Trace warm steps on `cpus`, each in turn with a plain one.

    Rounds in which others held the cores do not count and are repeated, until `patience_s` seconds are spent on them.

    Returns:
        The traced step whose length is the median, and how many steps were run for it.
    """
    ran = 1

    def run() -> tuple[int, list[int], dict[int, CopyTimes]]:
        nonlocal ran
        ran += 2
        start_ns = perf_counter_ns()
        executor.step()
        plain_ns = perf_counter_ns() - start_ns
        marks = executor.marked_step()
        begun_ns = marks[0]
        copies = {
            number: CopyTimes(copy.started_ns - begun_ns, copy.begun_ns - begun_ns, copy.ended_ns - begun_ns)
            for number, copy in executor.async_copies.items()
        }
        return plain_ns, [mark - begun_ns for mark in marks], copies

    watch = Watch(cpus, patience_s)
    with quiet_interpreter():
        executor.step()
        traced = watch.rounds(run, rounds, "steps")
    traced.sort(key=lambda one: one[1][-1])
    _, marks, copies = traced[(len(traced) - 1) // 2]
    trace = StepTrace(
        tuple(tuple(marks[first : end + 1]) for first, end in executor.spans),
        copies,
        tuple(each[-1] / 1e9 for _, each, _ in traced),
        tuple(plain_ns / 1e9 for plain_ns, _, _ in traced),
        bool(watch.disturbed),
    )
    return trace, ran
