"""How many threads run a kernel, and on which cores: set before the first call, and checked."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from autotm.kernels.library.tvm_runtime import global_function
from autotm.model.files import AutotmError
from autotm.model.machine import Machine, lost_ns

log = logging.getLogger(__name__)

_ONE_CORE_PER_THREAD = -2
"""TVM's affinity mode `kSpecifyOneCorePerThread`."""

_ENOUGH = 0.75
"""Share of the asked cores that must be busy; the rest is left to start-up and the clock's grain."""


@dataclass(frozen=True)
class CoreUse:
    """How many cores this process kept busy (`running`) or had work for (`wanting`) over a stretch of wall time."""

    running: float
    wanting: float


@contextmanager
def pinned(machine: Machine) -> Iterator[None]:
    """Give TVM's thread pool `machine.threads` threads on `machine.cpus`, and hold the calling thread on the first.

    TVM makes one pool per calling thread, at the first kernel call, and counts cores wrongly in virtual machines, so
    this must come before that call and on the same thread. On leaving, the calling thread may use its old cores again.

    Raises:
        AutotmError: the pool exists already with fewer threads, or a core cannot be used.
    """
    before = os.sched_getaffinity(0)
    os.environ["TVM_NUM_THREADS"] = str(machine.threads)
    cpus = [str(cpu) for cpu in machine.cpus]
    global_function("runtime.config_threadpool")(_ONE_CORE_PER_THREAD, machine.threads, cpus)
    threads = int(global_function("runtime.NumThreads")())
    if threads != machine.threads:
        raise AutotmError(
            f"TVM runs kernels on {threads} threads, {machine.threads} were asked by machine '{machine.name}': its "
            "thread pool was started before the count was set; start a new process"
        )
    try:
        os.sched_setaffinity(0, {machine.cpus[0]})
    except OSError as error:
        raise AutotmError(
            f"machine '{machine.name}': cpus: cannot run on core {machine.cpus[0]} ({error}); usable: {sorted(before)}"
        ) from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_cores(
    machine: Machine, work: Callable[[], None], min_s: float = 0.05, attempts: int = 5, busy: int | None = None
) -> CoreUse:
    """Run a parallel kernel for `min_s` and compare its CPU time with wall time.

    `busy` is how many of the machine's threads the kernel has work for, if not all.

    Cores lost to other processes only make timings worse and are logged; cores that the threads never asked for mean
    that kernels run on fewer threads than recorded.

    Raises:
        AutotmError: the threads wanted less than three quarters of the cores in every attempt.
    """
    threads = machine.threads if busy is None else busy
    use = CoreUse(0.0, 0.0)
    for _ in range(attempts):
        use = max(use, measure_cores(work, machine.cpus, min_s), key=lambda seen: seen.running)
        if use.running >= _ENOUGH * threads:
            return use
    if use.wanting < _ENOUGH * threads:
        raise AutotmError(
            f"kernels keep only {use.wanting:.2f} cores busy, machine '{machine.name}' asks for {threads} "
            f"threads on cores {list(machine.cpus)}; lower 'threads' or free the cores"
        )
    log.warning("other processes hold the cores: %.2f of %d are ours; timings will be too long", use.running, threads)
    return use


def measure_cores(work: Callable[[], None], cpus: Sequence[int], min_s: float) -> CoreUse:
    """Cores used while `work` repeats for at least `min_s` seconds, after one call that wakes the threads."""
    work()
    lost_before, cpu_before, start = lost_ns(cpus), time.process_time_ns(), time.perf_counter_ns()
    while (wall := time.perf_counter_ns() - start) < min_s * 1e9:
        work()
    cpu = time.process_time_ns() - cpu_before
    wall = time.perf_counter_ns() - start
    return CoreUse(cpu / wall, (cpu + lost_ns(cpus) - lost_before) / wall)
