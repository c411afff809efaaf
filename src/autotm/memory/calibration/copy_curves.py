"""Copies between the tiers by threads and kind of store, as the memory itself gives them: no emulated wait."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns

from autotm.memory.calibration.sampling import Effort, medians_ns, sizes_in_time
from autotm.memory.native import PLAIN, Stores, Team, Way, widest_store
from autotm.memory.tiers import Tiers
from autotm.model.machine import Watch
from autotm.model.measurement import CopyCurve
from autotm.model.step import Tier

STRIDE_BYTES = 67 << 20
"""Distance between the places of consecutive copies: far beyond the near caches, and no divisor of the pool."""

AHEAD_BYTES = (0, 512, 4096)
"""How early copies may ask for lines: some processors do so themselves, and better; far memory wants more of them."""


def copy_curves(
    tiers: Tiers, cpus: Sequence[int], sizes_bytes: Sequence[int], effort: Effort, watch: Watch
) -> tuple[CopyCurve, ...]:
    """Median times of copies in both directions, by 1, 2, 4, ... and all threads, with plain and streaming stores.

    The caller is on the first of `cpus`. Every copy uses other places in the pools. Of the sizes those are left out
    that follow one which takes too long.
    """
    team = Team(tuple(cpus[1:]))
    places = itertools.count()

    def elapsed_ns(destination: Tier, way: Way, size_bytes: int) -> int:
        source = Tier.PMEM if destination is Tier.DRAM else Tier.DRAM
        place = next(places) * STRIDE_BYTES // size_bytes % (tiers.fast.size_bytes // size_bytes) * size_bytes
        to, out_of = (
            tiers.pool(tier).view(place, (size_bytes,), "uint8").ctypes.data for tier in (destination, source)
        )
        start_ns = perf_counter_ns()
        team.copy(to, out_of, size_bytes, way.stores, way.threads)
        return perf_counter_ns() - start_ns

    curves = list(itertools.product(Tier, ways_to_measure(len(cpus))))
    try:
        sizes = sizes_in_time(
            sizes_bytes, lambda size: max(elapsed_ns(*curve, size) for curve in curves), effort.point_s
        )
        timed = {(*curve, size): partial(elapsed_ns, *curve, size) for curve in curves for size in reversed(sizes)}
        found = medians_ns(timed, effort, watch, "copies by threads and stores")
    finally:
        team.close()
    return tuple(
        CopyCurve(
            tier,
            way.threads,
            way.stores != PLAIN,
            way.stores.ahead_bytes,
            tuple((size, found[tier, way, size]) for size in sizes),
        )
        for tier, way in curves
    )


def ways_to_measure(threads: int) -> list[Way]:
    """Those that a copy engine of so many threads can choose from."""
    counts = sorted({*(1 << power for power in range(threads.bit_length())), threads})
    streaming = [Stores(widest_store(), ahead) for ahead in AHEAD_BYTES] if widest_store() else []
    return [Way(count, stores) for count in counts for stores in (PLAIN, *streaming)]
