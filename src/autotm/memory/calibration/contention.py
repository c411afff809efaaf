"""What copies and the kernels beside them take from each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns

from autotm.memory.async_copy import AsyncCopy
from autotm.memory.calibration.sampling import Effort
from autotm.model.machine import Watch
from autotm.model.measurement import Contention
from autotm.model.step import OpClass


def contention(
    async_copy: AsyncCopy, co_runners: Mapping[OpClass, Callable[[], None]], effort: Effort, watch: Watch
) -> dict[OpClass, Contention]:
    """What the copy and each co-runner take from each other, over the time that the copy takes alone.

    Each co-runner runs for as long as the asynchronous copy takes, and then as often without it, until what the copy
    adds to it is known to the effort's share of the copy's time, and again where `watch` says that others held the
    cores. What the copy adds to the kernel is the median over those pairs of the difference; what the kernel adds to
    the copy is the median of the copies, less the copy alone; 0 where below.
    """
    alone_ns = statistics.median(watch.until(partial(_alone_ns, async_copy), effort.is_enough, "asynchronous copies"))

    def is_enough(pairs: Sequence[tuple[int, int, int]]) -> bool:
        added_ns = [with_ns - without_ns for _, with_ns, without_ns in pairs]
        spent_ns = sum(with_ns + without_ns for _, with_ns, without_ns in pairs)
        return effort.is_known(added_ns, alone_ns, spent_ns)

    found = {}
    for op_class, co_runner in co_runners.items():
        co_runner()
        what = f"copies beside kernels ({op_class})"
        pairs = watch.until(partial(_beside, async_copy, co_runner), is_enough, what)
        to_kernels_ns = statistics.median(with_ns - without_ns for _, with_ns, without_ns in pairs)
        to_copy_ns = statistics.median(copy_ns for copy_ns, _, _ in pairs) - alone_ns
        found[op_class] = Contention(max(0.0, to_kernels_ns / alone_ns), max(0.0, to_copy_ns / alone_ns))
    return found


def _alone_ns(async_copy: AsyncCopy) -> int:
    async_copy.start()
    async_copy.wait()
    return async_copy.ended_ns - async_copy.started_ns


def _beside(async_copy: AsyncCopy, co_runner: Callable[[], None]) -> tuple[int, int, int]:
    """Nanoseconds of the copy, of as many calls of `co_runner` as it takes, and of as many without it."""
    async_copy.start()
    start_ns = perf_counter_ns()
    co_runner()
    calls = 1
    while not async_copy.is_done:
        co_runner()
        calls += 1
    with_ns = perf_counter_ns() - start_ns
    async_copy.wait()
    start_ns = perf_counter_ns()
    for _ in range(calls):
        co_runner()
    return async_copy.ended_ns - async_copy.started_ns, with_ns, perf_counter_ns() - start_ns


def call_us(async_copy: AsyncCopy, effort: Effort, watch: Watch) -> float:
    """Median microseconds of the two calls that start a copy and, when it is complete, wait for it."""
    found = watch.until(partial(_calls_ns, async_copy), effort.is_enough, "calls of copies beside kernels")
    return statistics.median(found) / 1e3


def _calls_ns(async_copy: AsyncCopy) -> int:
    first_ns = perf_counter_ns()
    async_copy.start()
    started_ns = perf_counter_ns()
    while not async_copy.is_done:
        time.sleep(0)
    complete_ns = perf_counter_ns()
    async_copy.wait()
    return started_ns - first_ns + perf_counter_ns() - complete_ns
