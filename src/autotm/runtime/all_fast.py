"""How long the all-fast step takes, and each kernel within it: what a profile is held against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotm.kernels.library import KernelLibrary
from autotm.kernels.threads import pinned
from autotm.memory.clock import quiet_interpreter
from autotm.memory.tiers import open_tiers
from autotm.model.cores import Watch
from autotm.model.graph import Graph
from autotm.model.machine import Machine
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.options import RunOptions
from autotm.runtime.plain import all_fast_program
from autotm.runtime.timing import time_steps

_WARM_UP_STEPS = 2
_INSTRUMENTED_STEPS = 3


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
    """Run the all-fast step of `graph` as programs run it.

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
        for _ in range(_WARM_UP_STEPS):
            executor.step()
        times = time_steps(executor, None, machine.cpus, options)
        watch = Watch(machine.cpus, 0.0 if times.disturbed_count else options.patience_s)
        passes = watch.rounds(executor.instrumented_step, _INSTRUMENTED_STEPS, "instrumented steps")
    medians_us = [statistics.median(series) / 1e3 for series in zip(*passes, strict=True)]
    names = [kernel.name for kernel in step.kernels]
    return AllFastStep(
        1e6 * statistics.median(times.samples_s),
        dict(zip(names, medians_us, strict=True)),
        times.disturbed_count or bool(watch.disturbed),
    )
