"""How many threads run a kernel, and on which cores: set before the first call, and checked."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotm.kernels.library.tvm_runtime import global_function, launch_parts
from autotm.model.files import AutotmError
from autotm.model.machine import Machine

log = logging.getLogger(__name__)

_ONE_CORE_PER_THREAD = -2
"""TVM's affinity mode `kSpecifyOneCorePerThread`."""

_ENOUGH = 0.75
"""A warning tells where kernels keep less than this share of their cores busy."""


_PINNED = threading.local()
ON_LEAVING: list[Callable[[], None]] = []
"""Called when a thread leaves `pinned`."""


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
    previous, _PINNED.machine = getattr(_PINNED, "machine", None), machine
    try:
        yield
    finally:
        _PINNED.machine = previous
        for leave in ON_LEAVING:
            leave()
        os.sched_setaffinity(0, before)


def pinned_machine() -> Machine | None:
    """The machine whose threads this thread's kernels run on, within `pinned`."""
    return getattr(_PINNED, "machine", None)


def check_cores(machine: Machine, work: Callable[[], None], min_s: float = 0.05, busy: int | None = None) -> None:
    """Count the threads that share a kernel, then run one for `min_s` and see that they keep their cores busy.

    The count holds whoever else uses the cores. What others take makes timings worse, and is logged; so is a kernel
    with fewer parts than `busy`.

    Args:
        machine: with the threads that were asked for, on its cores.
        work: calls a parallel kernel.
        min_s: for so long, in seconds.
        busy: how many of these threads the kernel has work for, if not all.

    Raises:
        AutotmError: TVM shares kernels between fewer threads than asked.
    """
    threads = len(kernel_threads())
    if threads < machine.threads:
        raise AutotmError(
            f"kernels run on {threads} threads, machine '{machine.name}' asks for {machine.threads} on cores "
            f"{list(machine.cpus)}; lower 'threads'"
        )
    asked = machine.threads if busy is None else busy
    used = measure_cores(work, min_s)
    if used < _ENOUGH * asked:
        log.warning(
            "kernels keep %.2f of %d cores busy: other processes hold them, or memory is short; timings will be too "
            "long",
            *(used, asked),
        )


def kernel_threads() -> set[int]:
    """The threads that run parts of a kernel which this thread calls, itself among them, by Linux's numbers."""
    found: set[int] = set()

    def part() -> None:
        found.add(threading.get_native_id())

    launch_parts(part)
    return found


def measure_cores(work: Callable[[], None], min_s: float) -> float:
    """Cores kept busy while `work` repeats for `min_s` seconds or more, after a call that wakes the threads."""
    work()
    cpu_before, start = time.process_time_ns(), time.perf_counter_ns()
    while (wall := time.perf_counter_ns() - start) < min_s * 1e9:
        work()
    cpu = time.process_time_ns() - cpu_before
    wall = time.perf_counter_ns() - start
    return cpu / wall
