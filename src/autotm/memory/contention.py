"""What copies beside kernels take from the step that they are beside."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns

from autotm.memory.async_copy import AsyncCopy
from autotm.model.machine import Watch


def contention(async_copy: AsyncCopy, co_runners: Sequence[Callable[[], None]], repeats: int, watch: Watch) -> float:
    """Microseconds that a microsecond of copying adds to the kernels beside it.

    Each co-runner runs for as long as the asynchronous copy takes, and then as often without it, `repeats` times, and
    again where `watch` says that others held the cores. The median over
    those pairs of 1 - (time without) / (time with) belongs to the co-runner; the mean over co-runners is the result, or
    0 where it is below.
    """
    shares = []
    for co_runner in co_runners:
        co_runner()
        pairs = watch.rounds(partial(_beside, async_copy, co_runner), repeats, "copies beside kernels")
        shares.append(statistics.median(1 - without_ns / with_ns for with_ns, without_ns in pairs))
    return max(0.0, statistics.mean(shares))


def _beside(async_copy: AsyncCopy, co_runner: Callable[[], None]) -> tuple[int, int]:
    """Nanoseconds of as many calls of `co_runner` as the asynchronous copy takes, and of as many without it."""
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
    return with_ns, perf_counter_ns() - start_ns


def call_us(async_copy: AsyncCopy, repeats: int, watch: Watch) -> float:
    """Median microseconds of the two calls that start a copy and, when it is complete, wait for it.

    All `repeats` are repeated where `watch` says that others held the cores.
    """

    def samples() -> list[int]:
        return [_calls_ns(async_copy) for _ in range(repeats)]

    return statistics.median(itertools.chain(*watch.rounds(samples, 1, "calls of copies beside kernels"))) / 1e3


def _calls_ns(async_copy: AsyncCopy) -> int:
    first_ns = perf_counter_ns()
    async_copy.start()
    started_ns = perf_counter_ns()
    while not async_copy.is_done:
        time.sleep(0)
    complete_ns = perf_counter_ns()
    async_copy.wait()
    return started_ns - first_ns + perf_counter_ns() - complete_ns
