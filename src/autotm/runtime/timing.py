"""How long a step takes as a whole, and each of its kernels within it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autotm.model.graph import Graph
from autotm.model.program import KernelStep
from autotm.runtime.executor import Executor


def time_steps(executor: Executor, min_steps: int, min_seconds: float) -> tuple[float, ...]:
    """Seconds of each of at least `min_steps` steps that together last at least `min_seconds`. Warm up before."""
    samples: list[float] = []
    with quiet_interpreter():
        while len(samples) < min_steps or sum(samples) < min_seconds:
            start = time.perf_counter_ns()
            executor.step()
            samples.append((time.perf_counter_ns() - start) / 1e9)
    return tuple(samples)


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


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection inside: it would interrupt kernels at random."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
