"""What copies beside kernels take from the step that they are beside."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns

from autotm.memory.flight import Flight
from autotm.model.machine import Watch


def contention(flight: Flight, neighbours: Sequence[Callable[[], None]], repeats: int, watch: Watch) -> float:
    """Microseconds that a microsecond of copying adds to the kernels beside it.

    Each neighbour runs for as long as the flight takes, and then as often without it, `repeats` times, and again where
    `watch` says that others held the cores. The median over
    those pairs of 1 - (time without) / (time with) belongs to the neighbour; the mean over neighbours is the result, or
    0 where it is below.
    """
    shares = []
    for neighbour in neighbours:
        neighbour()
        pairs = watch.rounds(partial(_beside, flight, neighbour), repeats, "copies beside kernels")
        shares.append(statistics.median(1 - without_ns / with_ns for with_ns, without_ns in pairs))
    return max(0.0, statistics.mean(shares))


def _beside(flight: Flight, neighbour: Callable[[], None]) -> tuple[int, int]:
    """Nanoseconds of as many calls of `neighbour` as the flight takes, and of as many without it."""
    flight.start()
    start_ns = perf_counter_ns()
    neighbour()
    calls = 1
    while not flight.is_done:
        neighbour()
        calls += 1
    with_ns = perf_counter_ns() - start_ns
    flight.wait()
    start_ns = perf_counter_ns()
    for _ in range(calls):
        neighbour()
    return with_ns, perf_counter_ns() - start_ns


def call_us(flight: Flight, repeats: int, watch: Watch) -> float:
    """Median microseconds of the two calls that start a copy and, when it is complete, wait for it.

    All `repeats` are repeated where `watch` says that others held the cores.
    """

    def samples() -> list[int]:
        return [_calls_ns(flight) for _ in range(repeats)]

    return statistics.median(itertools.chain(*watch.rounds(samples, 1, "calls of copies beside kernels"))) / 1e3


def _calls_ns(flight: Flight) -> int:
    first_ns = perf_counter_ns()
    flight.start()
    started_ns = perf_counter_ns()
    while not flight.is_done:
        time.sleep(0)
    complete_ns = perf_counter_ns()
    flight.wait()
    return started_ns - first_ns + perf_counter_ns() - complete_ns
