"""How long a step takes as a whole, and each of its kernels within it."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from autotm.kernels.threads import CLOCK_GRAIN_NS, foreign_ns
from autotm.memory.clock import quiet_interpreter
from autotm.model.graph import Graph
from autotm.model.program import KernelStep
from autotm.runtime.executor import Executor

log = logging.getLogger(__name__)


_DISTURBED = 0.1
"""A step is disturbed when others had more than this share of its cores. A waiting Snakemake alone takes some 5 %."""
_PATIENCE = 2
"""Disturbed steps are repeated until this many times as many steps as needed have been run."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the steps that count, and how many were left out because other processes held the cores.

    Where too few steps were undisturbed, all count.
    """

    samples_s: tuple[float, ...]
    disturbed: int


def time_steps(executor: Executor, cpus: Sequence[int], min_steps: int, min_seconds: float) -> StepTimes:
    """Time on `cpus` at least `min_steps` undisturbed steps that last `min_seconds` together. Warm up before."""
    quiet: list[float] = []
    every: list[float] = []
    with quiet_interpreter():
        while len(quiet) < min_steps or sum(quiet) < min_seconds:
            if len(every) >= _PATIENCE * min_steps and sum(every) >= _PATIENCE * min_seconds:
                break
            foreign, start = foreign_ns(cpus), time.perf_counter_ns()
            executor.step()
            taken = time.perf_counter_ns() - start
            every.append(taken / 1e9)
            if foreign_ns(cpus) - foreign <= len(cpus) * (_DISTURBED * taken + CLOCK_GRAIN_NS):
                quiet.append(taken / 1e9)
    if len(quiet) < min_steps:
        log.warning(
            "others had the cores in %d of %d steps: all count, and are too long", len(every) - len(quiet), len(every)
        )
        return StepTimes(tuple(every), 0)
    return StepTimes(tuple(quiet), len(every) - len(quiet))


def time_kernels(graph: Graph, executor: Executor, steps: int) -> dict[str, float]:
    """Median microseconds of every kernel by name over `steps` instrumented steps, emulated waits included."""
    with quiet_interpreter():
        passes = [executor.instrumented_step() for _ in range(steps)]
    medians = [statistics.median(series) / 1e3 for series in zip(*passes, strict=True)]
    return {
        graph.kernels[step.kernel].name: median
        for step, median in zip(executor.program.steps, medians, strict=True)
        if isinstance(step, KernelStep)
    }
