"""Measuring the links between the tiers of a machine, through the same copies that programs use."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from autotm.memory.async_copy import AsyncCopy
from autotm.memory.calibration.contention import call_us, contention
from autotm.memory.calibration.copy_curves import STRIDE_BYTES, copy_curves
from autotm.memory.calibration.sampling import Effort, medians_ns, sizes_in_time
from autotm.memory.copying import caller_on
from autotm.memory.device import measured_stretch
from autotm.memory.tiers import Tiers, open_tiers
from autotm.model.files import BadInputError
from autotm.model.machine import Machine, Watch
from autotm.model.measurement import AsynchronousLinks, Link, Links
from autotm.model.step import ALIGNMENT_BYTES, OpClass, Tier

log = logging.getLogger(__name__)

LINK_SIZES_BYTES = (64, *(4096 * 4**power for power in range(8)))
"""The latency of a copy; then 4 KiB to 64 MiB, above which its bandwidth no longer changes."""

_POOL_BYTES = 128 << 20
_CONTENTION_US = 15_000
"""Length of a copy beside kernels: several calls of a kernel that takes milliseconds. There are many op classes."""

_DESTINATIONS = (Tier.DRAM, Tier.PMEM)
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

    First the ways that a copy can be made are measured, so that all other copies go the fastest one, as programs' do.
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
        BadInputError: sizes or an effort that measure nothing, or what `open_tiers` raises.
    """
    _check(sizes_bytes, effort, co_runners)
    stretch = measured_stretch(machine, devices_dir, contraction_flop_per_s)
    pool_bytes = max(_POOL_BYTES, *sizes_bytes)
    with (
        open_tiers(machine, None, pool_bytes, pool_bytes, devices_dir, stretch=stretch) as tiers,
        caller_on(machine.cpus[0]),
    ):
        curves = copy_curves(tiers, machine.cpus, sizes_bytes, effort, watch)
        tiers.copy_as_measured(curves)
        blocking = _links(partial(_timed_copy_ns, tiers), tiers, sizes_bytes, effort, watch, "copies")
        flying = _links(partial(_timed_async_copy_ns, tiers), tiers, sizes_bytes, effort, watch, "asynchronous copies")
        beside = [contention(_long_async_copy(tiers, link), co_runners, effort, watch) for link in flying]
        short = _async_copy(tiers, 0, sizes_bytes[0], Tier.DRAM)
        (fast, slow), (beside_fast, beside_slow) = flying, beside
        asynchronous = AsynchronousLinks(fast, slow, beside_fast, beside_slow, call_us(short, effort, watch))
        tiers.check()
    disturbed = tuple(dict.fromkeys(watch.disturbed))
    if disturbed:
        log.warning("others held the cores: %s were measured all the same, and are too slow", ", ".join(disturbed))
    return Links(*blocking, contraction_flop_per_s, stretch, asynchronous, disturbed, curves=curves)


def _check(sizes_bytes: Sequence[int], effort: Effort, co_runners: Mapping[OpClass, Callable[[], None]]) -> None:
    ascending = list(sizes_bytes) == sorted(set(sizes_bytes))
    aligned = all(size > 0 and size % ALIGNMENT_BYTES == 0 for size in sizes_bytes)
    if len(sizes_bytes) < 2 or not ascending or not aligned:  # noqa: PLR2004 - a line needs two points
        raise BadInputError(
            f"calibration sizes {list(sizes_bytes)}: give at least two, ascending multiples of {ALIGNMENT_BYTES} bytes"
        )
    if effort.most < 1:
        raise BadInputError(f"calibration effort: {effort.most} samples at most measure nothing; give at least 1")
    if missing := [op_class.value for op_class in OpClass if op_class not in co_runners]:
        raise BadInputError(f"calibration co-runners: give a kernel of each op class; {', '.join(missing)} is missing")


def _links(
    timed_ns: Callable[[int, int, Tier], int],
    tiers: Tiers,
    sizes_bytes: Sequence[int],
    effort: Effort,
    watch: Watch,
    what: str,
) -> tuple[Link, Link]:
    """The links to fast and to slow memory.

    Rounds go from large to small sizes, because the first copy after a large one starts with cold caches, which only a
    small one would feel. Every copy uses another part of the pools: programs move tensors that other work has pushed
    out of near caches.
    """
    copies = itertools.count()

    def elapsed_ns(size: int, destination: Tier) -> int:
        place = next(copies) * STRIDE_BYTES // size % (tiers.fast.size_bytes // size)
        return timed_ns(place * size, size, destination)

    sizes = sizes_in_time(sizes_bytes, lambda size: max(elapsed_ns(size, tier) for tier in Tier), effort.point_s)
    timed = {(size, tier): partial(elapsed_ns, size, tier) for size in reversed(sizes) for tier in Tier}
    found = medians_ns(timed, effort, watch, what)
    to_fast, to_slow = (
        Link(destination, tuple((size, found[size, destination]) for size in sizes)) for destination in _DESTINATIONS
    )
    return to_fast, to_slow


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
