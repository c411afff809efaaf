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
from autotm.memory.opening import open_tiers
from autotm.model.cores import Watch, quiet_interpreter
from autotm.model.graph import ChosenGraph
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
    """Steps with everything in fast memory, run in turn: a round is a whole step, and each variant's kernel by kernel.

    Attributes:
        step_ns: (rounds,) of the whole step by the first variant.
        kernels_ns: (rounds, kernels) for each variant.
        disturbed: whether others held the cores all the same, so that times are too long.
    """

    step_ns: Nanoseconds
    kernels_ns: tuple[Nanoseconds, ...]
    disturbed: bool


def time_all_fast(
    variants: Sequence[ChosenGraph], library: KernelLibrary, machine: Machine, effort: Effort, devices_dir: Path
) -> AllFastRounds:
    """Run the all-fast step as programs run it, computed in each of the `variants`, the default first.

    Whatever speed the machine has at the time is that of the step, of its kernels, and of all variants to compute them.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel.
    """
    programs = [all_fast_program(variant) for variant in variants]
    pool_bytes = max(program.fast_bytes for program in programs)
    with (
        pinned(machine),
        # No variant leaves anything in the pool that the next step reads, so that all can have the same.
        open_tiers(machine, None, pool_bytes, 0, devices_dir, stretch=1.0) as tiers,
        quiet_interpreter(),
    ):
        arguments = Arguments.allocate(variants[0], tiers=tiers)
        arguments.fill(effort.seed, machine.cpus)
        executors = [
            prepare(variant, library, program, arguments, tiers)
            for variant, program in zip(variants, programs, strict=True)
        ]
        check_cores(machine, heaviest_call(variants[0], executors[0]), busy=library.busy_threads(machine.threads))
        for executor in executors:
            executor.step()
        rounds, is_disturbed = _rounds(executors, Watch(machine.cpus, effort.patience_s), effort)
        tiers.check()
    steps, passes = zip(*rounds, strict=True)
    return AllFastRounds(np.asarray(steps), tuple(np.asarray(one) for one in zip(*passes, strict=True)), is_disturbed)


_Round = tuple[int, tuple[list[int], ...]]


def _rounds(executors: Sequence[Executor], watch: Watch, effort: Effort) -> tuple[list[_Round], bool]:
    """Return the rounds that count, and whether disturbed ones are among them."""

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
        timed = watch.timed(run)
        every.append(timed.result)
        if watch.judge(timed.lost_ns, timed.wall_ns):
            good.append(timed.result)
            good_ns += timed.wall_ns
    return good, False


def _enough(steps_ns: Sequence[int], seconds: float, effort: Effort) -> bool:
    if len(steps_ns) < effort.min_rounds:
        return False
    if len(steps_ns) >= effort.max_rounds or seconds >= effort.seconds:
        return True
    error_ns = _MEDIAN_EFFICIENCY * float(np.std(steps_ns, ddof=1)) / math.sqrt(len(steps_ns))
    return error_ns <= effort.spread * float(np.median(steps_ns))
