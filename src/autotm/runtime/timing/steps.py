"""How long a step takes as a whole, and each of its kernels within it."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autotm.memory import quiet_interpreter
from autotm.model.machine import Round, Watch
from autotm.model.plan import KernelStep, MoveStep, WaitMoveStep
from autotm.model.step import Graph
from autotm.runtime.executor import Executor
from autotm.runtime.options import RunOptions

log = logging.getLogger(__name__)


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


Rounds = list[list[Round[None]]]


class Contender(Protocol):
    """What runs steps."""

    def step(self) -> None:
        """Run one to its end."""


def time_steps(
    executor: Contender,
    all_fast: Contender | None,
    cpus: Sequence[int],
    options: RunOptions,
    *,
    is_warm: bool = False,
    after_first: Callable[[], None] | None = None,
) -> StepTimes:
    """Time undisturbed, warm steps on `cpus`: as many, as long and as precisely as the options ask.

    With `all_fast`, its step is run after each of them: the two share whatever speed the machine has at the time.
    Rounds in which others held the cores do not count and are repeated, until the options' patience is spent.

    Args:
        executor: of the steps.
        all_fast: what is run in turn with it, if anything.
        cpus: that both run on.
        options: of the run.
        is_warm: whether the all-fast step has been run before, in memory that it had.
        after_first: called when the first step is done, before the all-fast one begins; its time does not count.
    """
    contenders = [executor] if all_fast is None else [executor, all_fast]
    watch = Watch(cpus, options.patience_s)
    quiet: Rounds = []
    every: Rounds = []
    with quiet_interpreter():
        if all_fast is not None and not is_warm:
            all_fast.step()
        while not _enough(quiet, options) and not (watch.is_over and len(every) >= options.min_steps):
            steps = []
            for contender in contenders:
                steps.append(watch.timed(contender.step))
                if after_first is not None:
                    after_first()
                    after_first = None
            every.append(steps)
            if watch.judge(sum(step.lost_ns for step in steps), sum(step.wall_ns for step in steps)):
                quiet.append(steps)
    disturbed, are_counted = len(every) - len(quiet), len(quiet) < options.min_steps
    if are_counted:
        log.warning("others held the cores in %d of %d rounds: all count, and are too long", disturbed, len(every))
    planned, *others = zip(*(every if are_counted else quiet), strict=True)
    beside = others[0] if others else ()
    return StepTimes(
        tuple(step.wall_ns / 1e9 for step in planned),
        tuple(step.wall_ns / 1e9 for step in beside),
        disturbed,
        are_counted,
        tuple(step.lost_ns / 1e9 for step in planned),
        tuple(step.lost_ns / 1e9 for step in beside),
    )


def _enough(quiet: Rounds, options: RunOptions) -> bool:
    if len(quiet) < options.min_steps or _planned_s(quiet) < options.min_seconds:
        return False
    if len(quiet) >= _MANY or _planned_s(quiet) >= _LONGER * options.min_seconds:
        return True
    return _standard_error(quiet) <= options.precision


def _standard_error(rounds: Rounds) -> float:
    """Of what records report, as a share of it: the ratio of the medians of both steps, or the median of the only one.

    By drawing as many rounds as there are from them, again and again. The two steps of a round stay together, since
    they share the machine's speed. Rounds that something made long hardly move a median; a mean would wait for more.
    """
    count = len(rounds)
    if count < 2:  # noqa: PLR2004 - one has no spread
        return math.inf
    walls_ns = np.array([[step.wall_ns for step in steps] for steps in rounds], float)
    drawn = np.random.default_rng(0).integers(count, size=(_DRAWS, count))
    medians_ns = np.median(walls_ns[drawn], axis=1)
    found = medians_ns[:, 0] / medians_ns[:, 1:].prod(axis=1)
    return float(np.std(found) / np.mean(found)) * math.sqrt(count / (count - 1))


def _planned_s(rounds: Rounds) -> float:
    return sum(steps[0].wall_ns for steps in rounds) / 1e9


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
    """What `steps` instrumented steps spend where; those of `passes`, which ran already, are among them."""
    with quiet_interpreter():
        every = [*passes, *(executor.instrumented_step() for _ in range(steps - len(passes)))]
    medians = [statistics.median(series) / 1e3 for series in zip(*every, strict=True)]
    parts = list(zip(executor.program.steps, medians, strict=True))
    return StepParts(
        {graph.kernels[step.kernel].name: median for step, median in parts if isinstance(step, KernelStep)},
        sum(median for step, median in parts if isinstance(step, WaitMoveStep)),
        sum(median for step, median in parts if isinstance(step, MoveStep)),
    )


def time_kernels(graph: Graph, executor: Executor, steps: int) -> dict[str, float]:
    """Median microseconds of every kernel by name over `steps` instrumented steps, emulated delays included."""
    return time_parts(graph, executor, steps).kernels_us
