"""Measuring the links between the tiers of a machine, through the same copies that programs use."""

from __future__ import annotations

import functools
import itertools
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from autotm.memory.async_copy import AsyncCopy
from autotm.memory.contention import call_us, contention
from autotm.memory.copying import caller_on
from autotm.memory.device import load_device
from autotm.memory.emulation import emulation_stretch
from autotm.memory.tiers import Tiers, open_tiers
from autotm.model.files import BadInputError
from autotm.model.machine import Machine, Watch
from autotm.model.measurement import AsynchronousLinks, Link, Links
from autotm.model.step import ALIGNMENT_BYTES, Tier

log = logging.getLogger(__name__)

LINK_SIZES_BYTES = tuple(4096 * 4**power for power in range(8))
"""4 KiB to 64 MiB: below, the fixed cost of a copy rules; above, its bandwidth no longer changes."""

_POOL_BYTES = 128 << 20
_STRIDE_BYTES = 67 << 20
"""Distance between the places of consecutive copies: far beyond the near caches, and no divisor of the pool."""

_CONTENTION_US = 30_000
"""Length of a copy beside kernels: several calls of a kernel that takes milliseconds."""

_LONG_BYTES, _LONG_REPEATS = 16 << 20, 5
"""From that size on copies take milliseconds and scatter little, so that a few of them are enough."""

_DESTINATIONS = (Tier.DRAM, Tier.PMEM)


def calibrate_links(
    machine: Machine,
    devices_dir: Path,
    contraction_flop_per_s: float,
    co_runners: Sequence[Callable[[], None]],
    watch: Watch,
    sizes_bytes: Sequence[int] = LINK_SIZES_BYTES,
    repeats: int = 15,
) -> Links:
    """Time copies in both directions, blocking and asynchronous, emulated wait included: the median of each size.

    What asynchronous copies cost the kernels beside them is measured on `co_runners`, called in turn with and without.

    Args:
        machine: the machine this process runs on.
        devices_dir: folder of the device files.
        contraction_flop_per_s: measured rate of this process's convolutions with the machine's threads.
        co_runners: kernels that run on all of the machine's cores, milliseconds each; at least one.
        watch: judges rounds; those in which others held the cores are repeated, or noted when its patience ends.
        sizes_bytes: sizes to measure, at least two, ascending; multiples of 64.
        repeats: copies of each size and direction, after one warm-up; of large sizes, 5 at most.

    Raises:
        BadInputError: sizes or repeats that measure nothing, or what `open_tiers` raises.
    """
    _check(sizes_bytes, repeats, co_runners)
    device = load_device(devices_dir, machine.slow_tier.device)
    stretch = emulation_stretch(device, machine.slow_tier, contraction_flop_per_s)
    pool_bytes = max(_POOL_BYTES, *sizes_bytes)
    with (
        open_tiers(machine, None, pool_bytes, pool_bytes, devices_dir, stretch=stretch) as tiers,
        caller_on(machine.cpus[0]),
    ):
        blocking = _links(functools.partial(_timed_copy_ns, tiers), tiers, sizes_bytes, repeats, watch, "copies")
        flying = _links(
            functools.partial(_timed_async_copy_ns, tiers), tiers, sizes_bytes, repeats, watch, "asynchronous copies"
        )
        shares = [contention(_long_async_copy(tiers, link), co_runners, repeats, watch) for link in flying]
        short = _async_copy(tiers, 0, sizes_bytes[0], Tier.DRAM)
        asynchronous = AsynchronousLinks(*flying, *shares, call_us(short, repeats, watch))
    disturbed = tuple(dict.fromkeys(watch.disturbed))
    if disturbed:
        log.warning("others held the cores: %s were measured all the same, and are too slow", ", ".join(disturbed))
    return Links(*blocking, contraction_flop_per_s, stretch, asynchronous, disturbed)


def _check(sizes_bytes: Sequence[int], repeats: int, co_runners: Sequence[Callable[[], None]]) -> None:
    ascending = list(sizes_bytes) == sorted(set(sizes_bytes))
    aligned = all(size > 0 and size % ALIGNMENT_BYTES == 0 for size in sizes_bytes)
    if len(sizes_bytes) < 2 or not ascending or not aligned:  # noqa: PLR2004 - a line needs two points
        raise BadInputError(
            f"calibration sizes {list(sizes_bytes)}: give at least two, ascending multiples of {ALIGNMENT_BYTES} bytes"
        )
    if repeats < 1:
        raise BadInputError(f"calibration repeats: {repeats} measures nothing; give at least 1")
    if not co_runners:
        raise BadInputError("calibration co-runners: without a kernel, contention is not measured; give at least 1")


def _links(
    timed_ns: Callable[[int, int, Tier], int],
    tiers: Tiers,
    sizes_bytes: Sequence[int],
    repeats: int,
    watch: Watch,
    what: str,
) -> tuple[Link, Link]:
    """The links to fast and to slow memory: medians of `repeats` copies of each size, after one round of warm-up.

    Rounds go through all sizes, so that a disturbance hits one sample of each and not all samples of one; from large
    to small, because the first copy after a large one starts with cold caches, which only a small one would feel.
    Later rounds leave the large ones out. Every copy uses another part of the pools: programs move tensors that other
    work has pushed out of near caches.
    """
    copies = itertools.count()

    def samples(sizes: Sequence[int]) -> dict[tuple[int, Tier], int]:
        elapsed_ns = {}
        for size in reversed(sizes):
            for destination in _DESTINATIONS:
                place = next(copies) * _STRIDE_BYTES // size % (tiers.fast.size_bytes // size)
                elapsed_ns[size, destination] = timed_ns(place * size, size, destination)
        return elapsed_ns

    samples(sizes_bytes)
    first = min(repeats, _LONG_REPEATS)
    found = watch.rounds(functools.partial(samples, sizes_bytes), first, what)
    short = [size for size in sizes_bytes if size < _LONG_BYTES]
    found += watch.rounds(functools.partial(samples, short), repeats - first, what)
    to_fast, to_slow = (
        Link(
            destination,
            tuple((size, round(_median_ns(found, size, destination))) for size in sizes_bytes),
        )
        for destination in _DESTINATIONS
    )
    return to_fast, to_slow


def _median_ns(found: Sequence[Mapping[tuple[int, Tier], int]], size_bytes: int, destination: Tier) -> float:
    return statistics.median(one[size_bytes, destination] for one in found if (size_bytes, destination) in one)


def _timed_copy_ns(tiers: Tiers, offset: int, size_bytes: int, destination: Tier) -> int:
    to_view, from_view = _views(tiers, offset, size_bytes, destination)
    start_ns = perf_counter_ns()
    tiers.copy(to_view, from_view, destination)
    return perf_counter_ns() - start_ns


def _timed_async_copy_ns(tiers: Tiers, offset: int, size_bytes: int, destination: Tier) -> int:
    async_copy = _async_copy(tiers, offset, size_bytes, destination)
    start_ns = perf_counter_ns()
    async_copy.start()
    async_copy.wait()
    return perf_counter_ns() - start_ns


def _views(
    tiers: Tiers, offset: int, size_bytes: int, destination: Tier
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Destination and source of a copy between equal places of the two pools."""
    source = Tier.PMEM if destination is Tier.DRAM else Tier.DRAM
    to_view, from_view = (tiers.pool(tier).view(offset, (size_bytes,), "uint8") for tier in (destination, source))
    return to_view, from_view


def _async_copy(tiers: Tiers, offset: int, size_bytes: int, destination: Tier) -> AsyncCopy:
    return tiers.async_copy(*_views(tiers, offset, size_bytes, destination), destination, 0)


def _long_async_copy(tiers: Tiers, link: Link) -> AsyncCopy:
    """A copy that takes about `_CONTENTION_US`, or as large as the pools."""
    largest, largest_ns = link.points[-1]
    wanted = int(largest * _CONTENTION_US * 1e3 / largest_ns) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    return _async_copy(tiers, 0, max(ALIGNMENT_BYTES, min(wanted, tiers.fast.size_bytes)), link.destination)
