"""Times of copies on this machine: alone, by threads and kinds of store, and beside kernels."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autotm.memory.copies import PLAIN, AsyncCopy, CopyEngine, CopyMethod, Stores, caller_on, ends, widest_store
from autotm.memory.emulation import measured_stretch
from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
from autotm.model.cores import Watch
from autotm.model.graph import ALIGNMENT_BYTES, OpClass, Tier
from autotm.model.links import AsynchronousLinks, Contention, CopyCurve, Link, Links
from autotm.model.machine import Machine

log = logging.getLogger(__name__)

# How often a time is taken until its median is known, and when that would take too long.

Key = TypeVar("Key", bound=Hashable)

_NORMAL_95 = 1.96  # standard deviations on each side of 95 % of a normal distribution
_LEAST_SIZES = 2  # a line through the points needs two


@dataclass(frozen=True, slots=True)
class Effort:
    """When a median of times is known well enough.

    Attributes:
        least: samples, before their scatter is judged.
        most: samples, however they scatter.
        share: done earlier when the median's confidence interval reaches at most that share of it to either side.
        point_s: seconds of samples after which a point is done, however few they are.
    """

    least: int = 5
    most: int = 15
    share: float = 0.02
    point_s: float = 1.0

    def is_enough(self, times_ns: Sequence[int]) -> bool:
        """Return whether the median of these times is known."""
        return bool(times_ns) and self.is_known(times_ns, statistics.median(times_ns), sum(times_ns))

    def is_known(self, samples: Sequence[float], whole: float, spent_ns: int) -> bool:
        """Return whether the median of `samples`, which took `spent_ns` to take, is known to a share of `whole`."""
        if len(samples) >= self.most or (samples and spent_ns >= self.point_s * 1e9):
            return True
        return len(samples) >= self.least and half_interval(samples) <= self.share * whole


def half_interval(samples: Sequence[float]) -> float:
    """Return half the width of the median's 95 % confidence interval, between two order statistics.

    Their ranks are n/2 -+ 1.96 sqrt(n)/2 (Conover, Practical Nonparametric Statistics, section 3.2); of five samples it
    is the whole range, which holds the median with 94 %.
    """
    ordered, count = sorted(samples), len(samples)
    low = max(0, math.floor((count - _NORMAL_95 * math.sqrt(count)) / 2) - 1)
    return (ordered[count - 1 - low] - ordered[low]) / 2


def medians_ns(timed: Mapping[Key, Callable[[], int]], effort: Effort, watch: Watch, label: str) -> dict[Key, int]:
    """Return the median nanoseconds of each of `timed`, in turn: a disturbance hits a sample of each, not all of one.

    A round is one sample of each that is not known yet; where `watch` says that others held the cores, it is repeated.
    """
    missing = list(timed)

    def one_round() -> dict[Key, int]:
        return {key: timed[key]() for key in missing}

    def samples(rounds: Sequence[Mapping[Key, int]], key: Key) -> list[int]:
        return [one[key] for one in rounds if key in one]

    def is_enough(rounds: Sequence[Mapping[Key, int]]) -> bool:
        missing[:] = [key for key in timed if not effort.is_enough(samples(rounds, key))]
        return not missing

    rounds = watch.until(one_round, is_enough, label)
    return {key: round(statistics.median(samples(rounds, key))) for key in timed}


def sizes_in_time(sizes_bytes: Sequence[int], longest_ns: Callable[[int], int], point_s: float) -> tuple[int, ...]:
    """Return the ascending sizes up to the first that takes longer than `point_s` seconds, and at least two.

    Links take larger copies to have the bandwidth of their last two sizes. `longest_ns` makes the copies of a size once
    and returns the longest time, so that they are warm afterwards.
    """
    for count, size_bytes in enumerate(sizes_bytes, 1):
        if longest_ns(size_bytes) > point_s * 1e9 and count >= _LEAST_SIZES:
            return tuple(sizes_bytes[:count])
    return tuple(sizes_bytes)


_BYTES = 128 << 20
"""Larger than the caches of most processors, so that most of it comes from memory."""
_ROUNDS = 7  # of which the fastest counts


def copy_bytes_per_s(machine: Machine, watch: Watch, size_bytes: int = _BYTES) -> float:
    """Return the best rate of a copy by all kernel threads, bytes read plus bytes written a second.

    `watch` judges the copies: those during which others hold the cores are repeated.
    """
    source, destination = (np.ones(size_bytes, np.uint8) for _ in range(2))
    engine = CopyEngine(machine.cpus)

    def copied_ns() -> int:
        start_ns = perf_counter_ns()
        engine.copy(destination, source)
        return perf_counter_ns() - start_ns

    try:
        with caller_on(machine.cpus[0]):
            return 2e9 * size_bytes / min(watch.rounds(copied_ns, _ROUNDS, "copies in fast memory"))
    finally:
        engine.close()


STRIDE_BYTES = 67 << 20
"""Distance between the places of consecutive copies: far beyond the near caches, and no divisor of the pool."""

AHEAD_BYTES = (0, 512, 4096)
"""How early copies may ask for lines: some processors do so themselves, and better; far memory wants more of them."""

Array = npt.NDArray[np.uint8]


def _views(tiers: Tiers, offset: int, size_bytes: int, destination: Tier) -> tuple[Array, Array]:
    """Return the destination and source of a copy."""
    source = Tier.SLOW if destination is Tier.FAST else Tier.FAST
    to_view, from_view = (tiers.pool(tier).view(offset, (size_bytes,), "uint8") for tier in (destination, source))
    return to_view, from_view


def _points(
    timed_ns: Mapping[Key, tuple[Tier, Callable[[Array, Array], int]]],
    tiers: Tiers,
    sizes_bytes: Sequence[int],
    effort: Effort,
    watch: Watch,
    label: str,
) -> dict[Key, tuple[tuple[int, int], ...]]:
    """Return, for each kind of copy, pairs of a size and its median nanoseconds.

    `timed_ns` gives its destination's tier, and a function of views of destination and source that returns nanoseconds.

    Rounds go from large to small sizes, because the first copy after a large one starts with cold caches, which only a
    small one would feel. Every copy uses another part of the pools: programs move tensors that other work has pushed
    out of near caches. Of the sizes those are left out that follow one which takes too long.
    """
    copies = itertools.count()

    def elapsed_ns(size: int, key: Key) -> int:
        place = next(copies) * STRIDE_BYTES // size % (tiers.fast.size_bytes // size)
        destination, copy_ns = timed_ns[key]
        return copy_ns(*_views(tiers, place * size, size, destination))

    sizes = sizes_in_time(sizes_bytes, lambda size: max(elapsed_ns(size, key) for key in timed_ns), effort.point_s)
    timed = {(size, key): partial(elapsed_ns, size, key) for size in reversed(sizes) for key in timed_ns}
    medians = medians_ns(timed, effort, watch, label)
    return {key: tuple((size, medians[size, key]) for size in sizes) for key in timed_ns}


def copy_curves(
    tiers: Tiers, cpus: Sequence[int], sizes_bytes: Sequence[int], effort: Effort, watch: Watch
) -> tuple[CopyCurve, ...]:
    """Time copies in both directions, by 1, 2, 4, ... and all threads, with plain and streaming stores: medians.

    They are as the memory itself gives them: no emulated wait. The caller is on the first of `cpus`.
    """
    engine = CopyEngine(tuple(cpus))

    def copied_ns(method: CopyMethod, to_view: Array, from_view: Array) -> int:
        addresses = ends("copy", to_view, from_view)
        start_ns = perf_counter_ns()
        engine.copy_addresses(*addresses, method)
        return perf_counter_ns() - start_ns

    timed = {
        (tier, method): (tier, partial(copied_ns, method))
        for tier, method in itertools.product(Tier, methods_to_measure(len(cpus)))
    }
    try:
        points = _points(timed, tiers, sizes_bytes, effort, watch, "copies by threads and stores")
    finally:
        engine.close()
    return tuple(
        CopyCurve(tier, method.threads, method.stores != PLAIN, method.stores.ahead_bytes, points[tier, method])
        for tier, method in timed
    )


def methods_to_measure(threads: int) -> list[CopyMethod]:
    """List the methods that a copy engine of `threads` threads can choose from."""
    counts = sorted({*(1 << power for power in range(threads.bit_length())), threads})
    streaming = [Stores(widest_store(), ahead) for ahead in AHEAD_BYTES] if widest_store() else []
    return [CopyMethod(count, stores) for count in counts for stores in (PLAIN, *streaming)]


def contention(
    async_copy: AsyncCopy, co_runners: Mapping[OpClass, Callable[[], None]], effort: Effort, watch: Watch
) -> dict[OpClass, Contention]:
    """Measure the time that the copy and each co-runner add to each other, as a share of the copy's time alone.

    Each co-runner runs for as long as the asynchronous copy takes, and then as often without it, until what the copy
    adds to it is known to the effort's share of the copy's time, and again where `watch` says that others held the
    cores. What the copy adds to the kernel is the median over those pairs of the difference; what the kernel adds to
    the copy is the median of the copies, less the copy alone; 0 where below.
    """

    def copy_alone_ns() -> int:
        async_copy.start()
        async_copy.wait()
        return async_copy.ended_ns - async_copy.started_ns

    alone_ns = statistics.median(watch.until(copy_alone_ns, effort.is_enough, "asynchronous copies"))

    def is_enough(pairs: Sequence[tuple[int, int, int]]) -> bool:
        added_ns = [with_ns - without_ns for _, with_ns, without_ns in pairs]
        spent_ns = sum(with_ns + without_ns for _, with_ns, without_ns in pairs)
        return effort.is_known(added_ns, alone_ns, spent_ns)

    measured = {}
    for op_class, co_runner in co_runners.items():
        co_runner()
        label = f"copies beside kernels ({op_class})"
        pairs = watch.until(partial(_overlapped_ns, async_copy, co_runner), is_enough, label)
        to_kernels_ns = statistics.median(with_ns - without_ns for _, with_ns, without_ns in pairs)
        to_copy_ns = statistics.median(copy_ns for copy_ns, _, _ in pairs) - alone_ns
        measured[op_class] = Contention(max(0.0, to_kernels_ns / alone_ns), max(0.0, to_copy_ns / alone_ns))
    return measured


def _overlapped_ns(async_copy: AsyncCopy, co_runner: Callable[[], None]) -> tuple[int, int, int]:
    """Return the nanoseconds of the copy, of as many calls of `co_runner` as it takes, and of as many without it."""
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
    """Return the median microseconds of the two calls that start a copy and, when it is complete, wait for it."""

    def calls_ns() -> int:
        first_ns = perf_counter_ns()
        async_copy.start()
        started_ns = perf_counter_ns()
        while not async_copy.is_done:
            time.sleep(0)
        complete_ns = perf_counter_ns()
        async_copy.wait()
        return started_ns - first_ns + perf_counter_ns() - complete_ns

    return statistics.median(watch.until(calls_ns, effort.is_enough, "calls of copies beside kernels")) / 1e3


# Measuring the links between the tiers of a machine, through the same copies that programs use.

LINK_SIZES_BYTES = (64, *(4096 * 4**power for power in range(8)))
"""The latency of a copy; then 4 KiB to 64 MiB, above which its bandwidth no longer changes."""

_POOL_BYTES = 128 << 20
_CONTENTION_US = 15_000
"""Length of a copy beside kernels: several calls of a kernel that takes milliseconds. There are many op classes."""

_USUAL_EFFORT = Effort()


def calibrate_links(
    machine: Machine,
    devices_dir: Path,
    contraction_flop_per_s: float,
    co_runners: Mapping[OpClass, Callable[[], None]],
    watch: Watch,
    sizes_bytes: Sequence[int] = LINK_SIZES_BYTES,
    effort: Effort = _USUAL_EFFORT,
) -> Links:
    """Time copies in both directions, blocking and asynchronous, emulated wait included: the median of each size.

    First the methods of copies are measured, so that all other copies take the fastest one, as programs' do.
    What asynchronous copies and kernels take from each other is measured on `co_runners`, called in turn with and
    without a copy.

    Args:
        machine: the machine this process runs on.
        devices_dir: folder of the device files.
        contraction_flop_per_s: measured rate of this process's convolutions with the machine's threads.
        co_runners: a kernel of each op class that runs on all of the machine's cores, milliseconds each.
        watch: judges rounds; those in which others held the cores are repeated, or noted when its patience ends.
        sizes_bytes: sizes to measure, at least two, ascending; multiples of 64. What follows a size that takes longer
            than `effort.point_s` is left out.
        effort: how well each median is to be known, and how long one may take.

    Raises:
        as `open_tiers`.
    """
    stretch = measured_stretch(machine, devices_dir, contraction_flop_per_s)
    pool_bytes = max(_POOL_BYTES, *sizes_bytes)
    with (
        open_tiers(machine, None, pool_bytes, pool_bytes, devices_dir, stretch=stretch) as tiers,
        caller_on(machine.cpus[0]),
    ):
        curves = copy_curves(tiers, machine.cpus, sizes_bytes, effort, watch)
        tiers.copy_as_measured(curves)

        def moved_ns(destination: Tier, to_view: Array, from_view: Array) -> int:
            start_ns = perf_counter_ns()
            tiers.copy(to_view, from_view, destination)
            return perf_counter_ns() - start_ns

        def asynchronously_moved_ns(destination: Tier, to_view: Array, from_view: Array) -> int:
            async_copy = tiers.async_copy(to_view, from_view, destination, 0)
            start_ns = perf_counter_ns()
            async_copy.start()
            async_copy.wait()
            return perf_counter_ns() - start_ns

        def links(copy_ns: Callable[[Tier, Array, Array], int], label: str) -> tuple[Link, Link]:
            timed = {tier: (tier, partial(copy_ns, tier)) for tier in Tier}
            points = _points(timed, tiers, sizes_bytes, effort, watch, label)
            return Link(Tier.FAST, points[Tier.FAST]), Link(Tier.SLOW, points[Tier.SLOW])

        blocking, alone = links(moved_ns, "copies"), links(asynchronously_moved_ns, "asynchronous copies")
        overlap = [contention(_long_async_copy(tiers, link), co_runners, effort, watch) for link in alone]
        short = tiers.async_copy(*_views(tiers, 0, sizes_bytes[0], Tier.FAST), Tier.FAST, 0)
        asynchronous = AsynchronousLinks(*alone, *overlap, call_us(short, effort, watch))
        tiers.check()
    disturbed = tuple(dict.fromkeys(watch.disturbed))
    if disturbed:
        log.warning("others held the cores: %s were measured all the same, and are too slow", ", ".join(disturbed))
    return Links(*blocking, contraction_flop_per_s, stretch, asynchronous, disturbed, curves=curves)


def _long_async_copy(tiers: Tiers, link: Link) -> AsyncCopy:
    """Return a copy that takes about `_CONTENTION_US`, or one as large as the pools if that is less."""
    largest, largest_ns = link.points[-1]
    wanted = int(largest * _CONTENTION_US * 1e3 / largest_ns) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    size_bytes = max(ALIGNMENT_BYTES, min(wanted, tiers.fast.size_bytes))
    return tiers.async_copy(*_views(tiers, 0, size_bytes, link.destination), link.destination, 0)
