"""What copies beside kernels take from the step that they are beside."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from time import perf_counter_ns

from autotm.memory.flight import Flight


def contention(flight: Flight, neighbours: Sequence[Callable[[], None]], repeats: int) -> float:
    """Microseconds that a microsecond of copying adds to the kernels beside it.

    Each neighbour runs for as long as the flight takes, and then as often without it, `repeats` times. The median over
    those pairs of 1 - (time without) / (time with) belongs to the neighbour; the mean over neighbours is the result, or
    0 where it is below.
    """
    shares = []
    for neighbour in neighbours:
        neighbour()
        pairs = [_beside(flight, neighbour) for _ in range(repeats)]
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


def call_us(flight: Flight, repeats: int) -> float:
    """Median microseconds of the two calls that start a copy and, when it is complete, wait for it."""
    samples = []
    for _ in range(repeats):
        first_ns = perf_counter_ns()
        flight.start()
        started_ns = perf_counter_ns()
        while not flight.is_done:
            time.sleep(0)
        complete_ns = perf_counter_ns()
        flight.wait()
        samples.append(started_ns - first_ns + perf_counter_ns() - complete_ns)
    return statistics.median(samples) / 1e3
