"""How long the all-fast step takes, and each kernel where it stands in it, by each of its implementations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.tiers import open_tiers
from autotm.model.cores import Watch, quiet_interpreter
from autotm.model.graph import Graph
from autotm.model.machine import Machine
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, heaviest_call, prepare
from autotm.runtime.verify import all_fast_program

Nanoseconds = npt.NDArray[np.int64]

_MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median in units of that of a mean, sqrt(pi / 2)."""


@dataclass(frozen=True)
class Effort:
    """How many rounds are run, and for how long.

    Attributes:
        min_rounds, max_rounds: rounds that count.
        seconds: after which enough rounds are done.
        spread: they are done earlier when the standard error of the median step is at most this share of it.
        patience_s: rounds during which others held the cores are repeated for so long in all, or three times as long as
            the good ones took.
        seed: of the arguments.
    """

    min_rounds: int
    max_rounds: int
    seconds: float
    spread: float
    patience_s: float
    seed: int = 0


@dataclass(frozen=True)
class AllFastRounds:
    """Steps with everything in fast memory, run in turn: a round is a whole step and one of each way, kernel by kernel.

    Attributes:
        step_ns: (rounds,) of the whole step by the first way.
        kernels_ns: (rounds, kernels) for each way.
        disturbed: whether others held the cores all the same, so that times are too long.
    """

    step_ns: Nanoseconds
    kernels_ns: tuple[Nanoseconds, ...]
    disturbed: bool


def time_all_fast(
    ways: Sequence[Graph], library: KernelLibrary, machine: Machine, effort: Effort, devices_dir: Path
) -> AllFastRounds:
    """Run the all-fast step as programs run it, computed in each of the `ways`, the default first.

    Whatever speed the machine has at the time is that of the step, of its kernels, and of all ways to compute them.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel.
    """
    programs = [all_fast_program(way) for way in ways]
    pool_bytes = max(program.fast_bytes for program in programs)
    with (
        pinned(machine),
        # No way leaves anything in the pool that the next step reads, so that all can have the same.
        open_tiers(machine, None, pool_bytes, 0, devices_dir, stretch=1.0) as tiers,
        quiet_interpreter(),
    ):
        arguments = Arguments.allocate(ways[0], tiers=tiers)
        arguments.fill(effort.seed, machine.cpus)
        executors = [
            prepare(way, library, program, arguments, tiers) for way, program in zip(ways, programs, strict=True)
        ]
        check_cores(machine, heaviest_call(ways[0], executors[0]), busy=library.busy_threads(machine.threads))
        for executor in executors:
            executor.step()
        rounds, is_disturbed = _rounds(executors, Watch(machine.cpus, effort.patience_s), effort)
        tiers.check()
    steps, passes = zip(*rounds, strict=True)
    return AllFastRounds(np.asarray(steps), tuple(np.asarray(one) for one in zip(*passes, strict=True)), is_disturbed)


_Round = tuple[int, tuple[list[int], ...]]


def _rounds(executors: Sequence[Executor], watch: Watch, effort: Effort) -> tuple[list[_Round], bool]:
    """The rounds that count, and whether disturbed ones are among them."""

    def run() -> _Round:
        start_ns = perf_counter_ns()
        executors[0].step()
        whole_ns = perf_counter_ns() - start_ns
        return whole_ns, tuple(executor.instrumented_step() for executor in executors)

    good: list[_Round] = []
    every: list[_Round] = []
    good_ns = 0
    while not _enough([whole_ns for whole_ns, _ in good], good_ns / 1e9, effort):
        if watch.is_over and len(every) >= effort.min_rounds:
            # Too few to be precise are still right.
            return (good, False) if len(good) >= effort.min_rounds else (every, True)
        found = watch.timed(run)
        every.append(found.result)
        if watch.judge(found.lost_ns, found.wall_ns):
            good.append(found.result)
            good_ns += found.wall_ns
    return good, False


def _enough(steps_ns: Sequence[int], seconds: float, effort: Effort) -> bool:
    if len(steps_ns) < effort.min_rounds:
        return False
    if len(steps_ns) >= effort.max_rounds or seconds >= effort.seconds:
        return True
    error_ns = _MEDIAN_EFFICIENCY * float(np.std(steps_ns, ddof=1)) / math.sqrt(len(steps_ns))
    return error_ns <= effort.spread * float(np.median(steps_ns))
