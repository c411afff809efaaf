"""How long the all-fast step takes, and each kernel within it: what a profile is held against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from autotm.kernels.library import KernelLibrary
from autotm.kernels.threads import pinned
from autotm.memory.clock import quiet_interpreter
from autotm.memory.tiers import open_tiers
from autotm.model.cores import Watch
from autotm.model.graph import Graph
from autotm.model.machine import Machine
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, prepare
from autotm.runtime.options import RunOptions
from autotm.runtime.plain import all_fast_program
from autotm.runtime.timing import time_steps

_WARM_UP_STEPS = 2
_INSTRUMENTED_STEPS = 3
_MOST_STEPS = 300
"""Of steps that take microseconds, which judging a round takes longer than."""


@dataclass(frozen=True)
class AllFastStep:
    """The step with the default implementations and everything in fast memory.

    Attributes:
        step_us: median of undisturbed steps.
        kernels_us: median of each kernel, by name, in instrumented steps.
        disturbed: whether others held the cores all the same, so that times are too long.
    """

    step_us: float
    kernels_us: Mapping[str, float]
    disturbed: bool


def time_all_fast(
    graph: Graph, library: KernelLibrary, machine: Machine, options: RunOptions, devices_dir: Path
) -> AllFastStep:
    """Run the all-fast step of `graph` as programs run it, for as long as the options say, or 300 times.

    Raises:
        BadInputError: the library lacks a kernel.
    """
    step = graph.computed_by(())
    program, arguments = all_fast_program(step), Arguments.allocate(step)
    arguments.fill(options.seed)
    with (
        pinned(machine),
        open_tiers(machine, None, program.fast_bytes, 0, devices_dir, stretch=1.0) as tiers,
        quiet_interpreter(),
    ):
        executor = prepare(step, library, program, arguments, tiers)
        warm_s = min(_seconds(executor) for _ in range(_WARM_UP_STEPS))
        briefly = replace(options, min_seconds=min(options.min_seconds, _MOST_STEPS * warm_s))
        times = time_steps(executor, None, machine.cpus, briefly)
        watch = Watch(machine.cpus, 0.0 if times.disturbed_count else options.patience_s)
        passes = watch.rounds(executor.instrumented_step, _INSTRUMENTED_STEPS, "instrumented steps")
    medians_us = [statistics.median(series) / 1e3 for series in zip(*passes, strict=True)]
    names = [kernel.name for kernel in step.kernels]
    return AllFastStep(
        1e6 * statistics.median(times.samples_s),
        dict(zip(names, medians_us, strict=True)),
        times.disturbed_count or bool(watch.disturbed),
    )


def _seconds(executor: Executor) -> float:
    start = perf_counter()
    executor.step()
    return perf_counter() - start
