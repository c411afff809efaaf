"""Number of threads and kind of store for a copy of each size: as measured, or from cache sizes."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotm.memory.native.library import PLAIN, Stores, streamed_bytes, widest_store
from autotm.model.graph import Tier
from autotm.model.links import CopyCurve

_PARALLEL_BYTES = 2 << 20
"""Smaller copies stay on the calling thread, unless several are measured to be faster: waking them takes a good part of
the time of such a copy, and more when they have slept for long."""

_AS_FAST = 1.05
"""Ways that take at most so many times as long as the fastest count as equally fast: medians scatter by as much."""

_AS_FAST_OVERALL = 1.01
"""The same of means over sizes, which scatter less."""


@dataclass(frozen=True, slots=True)
class CopyMethod:
    """How one copy is made.

    Attributes:
        threads: how many copy together, the caller among them.
        stores: of each of them.
    """

    threads: int
    stores: Stores


@dataclass(frozen=True, slots=True)
class CopyMethods:
    """Ways of copies to one tier by size: `ways[i]` from `from_bytes[i]` on, which ascend from 0.

    `alone` are those of a single thread.
    """

    from_bytes: tuple[int, ...]
    ways: tuple[CopyMethod, ...]
    alone: tuple[Stores, ...]

    def way(self, size_bytes: int) -> CopyMethod:
        """Of a copy that the step waits for."""
        return self.ways[bisect.bisect_right(self.from_bytes, size_bytes) - 1]

    def stores_alone(self, size_bytes: int) -> Stores:
        """Of a copy by one thread."""
        return self.alone[bisect.bisect_right(self.from_bytes, size_bytes) - 1]


def usual_ways(threads: int) -> CopyMethods:
    """What caches suggest where nothing was measured: streaming stores from `streamed_bytes()` on."""
    streaming = Stores(widest_store())
    from_bytes = sorted({0, streamed_bytes(), _PARALLEL_BYTES})
    alone = tuple(streaming if start >= streamed_bytes() else PLAIN for start in from_bytes)
    ways = tuple(
        CopyMethod(threads if start >= _PARALLEL_BYTES else 1, stores)
        for start, stores in zip(from_bytes, alone, strict=True)
    )
    return CopyMethods(tuple(from_bytes), ways, alone)


def measured_ways(curves: Sequence[CopyCurve], destination: Tier, threads: int) -> CopyMethods:
    """The fastest of the measured ways at each size, by `threads` or fewer; between sizes, that of the nearer one.

    At sizes below `streamed_bytes()` stores stay plain: such a copy stays in the caches for the kernel that reads it,
    which its own time does not show. How early streaming copies ask for lines is chosen for all sizes together, since
    it follows from the processor and the memory, and one size alone may have been disturbed. Of ways that are as fast,
    large copies take the one with most threads: their cores stand still while a step waits, and where neighbours leave
    more of the memory, several threads get more of it. Small ones, over before a thread has woken up, take that with
    fewest. Then streaming stores. Without curves to that tier, `usual_ways`.
    """
    fitting = [curve for curve in curves if curve.destination is destination and curve.threads <= threads]
    if not fitting:
        return usual_ways(threads)
    sizes = [size for size, _ in fitting[0].points]
    by_threads: dict[int, list[CopyCurve]] = {}
    for curve in fitting:
        by_threads.setdefault(curve.threads, []).append(curve)
    kept = {count: _with_one_prefetch(each) for count, each in by_threads.items()}
    fastest = [_fastest([curve for each in kept.values() for curve in each], size) for size in sizes]
    alone = [_fastest(kept[1], size).stores for size in sizes]
    halfway = [math.isqrt(one * other) for one, other in itertools.pairwise(sizes)]
    return CopyMethods((0, *halfway), tuple(fastest), tuple(alone))


def _with_one_prefetch(curves: Sequence[CopyCurve]) -> list[CopyCurve]:
    """Of curves of so many threads: the plain one, and that streaming one whose copies are fastest over the sizes."""
    plain = [curve for curve in curves if not curve.streams]
    streaming = {curve: _mean_log_ns(curve) for curve in curves if curve.streams}
    if not streaming:
        return plain
    least = min(streaming.values())
    as_fast = [curve for curve, mean in streaming.items() if mean <= least + math.log(_AS_FAST_OVERALL)]
    return [*plain, min(as_fast, key=lambda curve: curve.ahead_bytes)]


def _mean_log_ns(curve: CopyCurve) -> float:
    """Over the sizes at which copies stream, or all where none is so large."""
    times_ns = [ns for size, ns in curve.points if size >= streamed_bytes()] or [ns for _, ns in curve.points]
    return statistics.fmean(math.log(max(1, ns)) for ns in times_ns)


def _fastest(curves: Sequence[CopyCurve], size_bytes: int) -> CopyMethod:
    is_large = size_bytes >= streamed_bytes()
    allowed = [curve for curve in curves if is_large or not curve.streams]
    times_ns = [dict(curve.points)[size_bytes] for curve in allowed]
    as_fast = [curve for curve, ns in zip(allowed, times_ns, strict=True) if ns <= _AS_FAST * min(times_ns)]
    first = min(
        as_fast,
        key=lambda curve: (-curve.threads if size_bytes >= _PARALLEL_BYTES else curve.threads, not curve.streams),
    )
    return CopyMethod(first.threads, Stores(widest_store(), first.ahead_bytes) if first.streams else PLAIN)
