"""How many threads run a kernel, and on which cores: set before the first call, and checked."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autotm.kernels.library.tvm_runtime import global_function
from autotm.model.files import AutotmError
from autotm.model.machine import Machine, running_ns

log = logging.getLogger(__name__)

_ONE_CORE_PER_THREAD = -2
"""TVM's affinity mode `kSpecifyOneCorePerThread`."""

_ENOUGH = 0.75
"""Share of the asked threads that must run: not every kernel has parts for all of many threads."""
_AT_WORK = 0.01
"""A thread counts that runs for this share of the time that the busiest one does; those without kernels sleep."""


@dataclass(frozen=True)
class CoreUse:
    """How many cores this process kept busy over a stretch of wall time, and how many of its threads ran.

    `threads` is None where Linux does not count.
    """

    cores: float
    threads: int | None


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


def check_cores(machine: Machine, work: Callable[[], None], min_s: float = 0.05, busy: int | None = None) -> CoreUse:
    """Run a parallel kernel for `min_s` and count the threads that run it.

    Each thread has its part of a kernel, and runs as long for it whoever else holds the cores. What others take only
    makes timings worse, and is logged.

    Args:
        machine: with the threads that were asked for, on its cores.
        work: calls the kernel.
        min_s: for so long, in seconds.
        busy: how many of these threads the kernel has work for, if not all.

    Raises:
        AutotmError: fewer than three quarters of the threads run.
    """
    asked = machine.threads if busy is None else busy
    use = measure_cores(work, min_s)
    if use.threads is not None and use.threads < _ENOUGH * asked:
        raise AutotmError(
            f"kernels run on {use.threads} threads, machine '{machine.name}' asks for {asked} on cores "
            f"{list(machine.cpus)}; lower 'threads'"
        )
    if use.cores < _ENOUGH * asked:
        log.warning(
            "kernels keep %.2f of %d cores busy: other processes hold them, or memory is short; timings will be too "
            "long",
            *(use.cores, asked),
        )
    return use


def measure_cores(work: Callable[[], None], min_s: float) -> CoreUse:
    """Cores and threads used while `work` repeats for `min_s` seconds or more, after a call that wakes the threads."""
    work()
    ran_before, cpu_before, start = running_ns(), time.process_time_ns(), time.perf_counter_ns()
    while (wall := time.perf_counter_ns() - start) < min_s * 1e9:
        work()
    cpu = time.process_time_ns() - cpu_before
    wall = time.perf_counter_ns() - start
    ran = [now - ran_before.get(thread, 0) for thread, now in running_ns().items()]
    # The caller works, though a core without ticks may not have counted it yet.
    return CoreUse(cpu / wall, max(1, sum(each > _AT_WORK * max(ran) for each in ran)) if ran else None)
