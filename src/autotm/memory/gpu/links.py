"""Times of copies on a device, alone and while kernels run: one measurement for CUDA's streams and for PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Protocol

from autotm.memory.gpu.cuda_device import CudaDevice, CudaStream
from autotm.memory.gpu.cuda_memory import Span
from autotm.model.graph import OpClass, Tier
from autotm.model.links import AsynchronousLinks, Contention, Link, Links

DEVICE_LINK_BYTES = tuple(4096 * 4**power for power in range(9))
"""4 KiB to 256 MiB: below, a copy takes what its calls take; above, its bandwidth no longer changes."""
REPEATS = 15
_CALLS = 100
_TOGETHER = 10
"""Kernels launched one after the other to know what one takes: a single one is timed with its launch."""
_OUTLASTING = 3.0
"""Kernels run for so many times what a copy takes alone, so that they outlast it even where they slow it."""
CoRunner = Callable[[], object]


class CopyTimer(Protocol):
    """Times copies into a tier from the other one, in nanoseconds."""

    def alone_ns(self, tier: Tier, size_bytes: int) -> float:
        """Time a copy while nothing else runs."""

    def blocking_ns(self, tier: Tier, size_bytes: int) -> float:
        """Time a copy that kernels wait for, from the kernel before it to the one after it."""

    def kernels_ns(self, co_runner: CoRunner, calls: int, copy: tuple[Tier, int] | None = None) -> tuple[float, float]:
        """Time calls of a kernel, and a copy to a tier that starts before them; 0 where there is no copy."""


def copy_times(
    timed_ns: Callable[[Tier, int], float], tier: Tier, sizes_bytes: Sequence[int], repeats: int = REPEATS
) -> Link:
    """Time copies into a tier: the median of each size, after one that does not count."""
    points = []
    for size_bytes in sizes_bytes:
        timed_ns(tier, size_bytes)
        points.append((size_bytes, max(1, round(median(timed_ns(tier, size_bytes) for _ in range(repeats))))))
    return Link(tier, tuple(points))


def links_of(
    timer: CopyTimer,
    flop_per_s: float,
    co_runners: Mapping[OpClass, CoRunner],
    sizes_bytes: Sequence[int],
    repeats: int,
    call_us: float | None = None,
) -> Links:
    """Time copies in both directions, and what they and kernels take from each other.

    Args:
        timer: of the device.
        flop_per_s: measured rate of its contractions.
        co_runners: what launches a kernel of each op class; classes may share one, which is timed once.
        sizes_bytes: to measure, ascending; with kernels only the largest.
        repeats: of each.
        call_us: what a kernel loses by waiting for a copy that is complete; None: what the smallest copy takes longer
            where kernels wait for it.
    """
    blocking, alone, overlap = {}, {}, {}
    for tier in Tier:
        blocking[tier], alone[tier] = (
            copy_times(timed_ns, tier, sizes_bytes, repeats) for timed_ns in (timer.blocking_ns, timer.alone_ns)
        )
        shared = {
            co_runner: _contention(timer, co_runner, (tier, sizes_bytes[-1]), repeats)
            for co_runner in dict.fromkeys(co_runners.values())
        }
        overlap[tier] = {op_class: shared[co_runner] for op_class, co_runner in co_runners.items()}
    if call_us is None:
        call_us = max(0.0, min(blocking[tier].points[0][1] - alone[tier].points[0][1] for tier in Tier) / 1e3)
    asynchronous = AsynchronousLinks(
        alone[Tier.FAST], alone[Tier.SLOW], overlap[Tier.FAST], overlap[Tier.SLOW], call_us
    )
    return Links(blocking[Tier.FAST], blocking[Tier.SLOW], flop_per_s, 1.0, asynchronous)


def _contention(timer: CopyTimer, co_runner: CoRunner, copy: tuple[Tier, int], repeats: int) -> Contention:
    """Compare a copy and kernels that run all the while with each alone, over the copy's own time."""
    timer.kernels_ns(co_runner, 1)
    one_ns = max(1.0, timer.kernels_ns(co_runner, _TOGETHER)[0] / _TOGETHER)
    alone_ns = max(1.0, median(timer.alone_ns(*copy) for _ in range(repeats)))
    calls = math.ceil(_OUTLASTING * alone_ns / one_ns)
    to_kernels, to_copy = [], []
    for _ in range(repeats):
        without_ns, _ = timer.kernels_ns(co_runner, calls)
        with_ns, copy_ns = timer.kernels_ns(co_runner, calls, copy)
        to_kernels.append(with_ns - without_ns)
        to_copy.append(copy_ns - alone_ns)
    return Contention(max(0.0, median(to_kernels) / alone_ns), max(0.0, median(to_copy) / alone_ns))


# Copies on the streams that programs use, from event to event.


class StreamTimer:
    """A `CopyTimer` of a device whose streams stand still; copies use the beginnings of its pools."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._begin, self._end, self._first, self._last = (device.event(timed=True) for _ in range(4))

    def alone_ns(self, tier: Tier, size_bytes: int) -> int:
        """Return the time of a copy alone in ns, by events of the copy's stream."""
        self._copy(tier, size_bytes)
        self._device.synchronize()
        return self._device.elapsed_ns(self._begin, self._end)

    def blocking_ns(self, tier: Tier, size_bytes: int) -> int:
        """Return the time in ns between the points where the compute stream hands over to a copy and goes on."""
        compute, stream = self._device.compute, self._stream(tier)
        compute.record(self._first)
        stream.wait(self._first)
        self._copy(tier, size_bytes)
        compute.wait(self._end)
        compute.record(self._last)
        self._device.synchronize()
        return self._device.elapsed_ns(self._first, self._last)

    def kernels_ns(self, co_runner: CoRunner, calls: int, copy: tuple[Tier, int] | None = None) -> tuple[int, int]:
        """Return the times of the kernels and of the copy in ns, by events of both streams."""
        compute = self._device.compute
        if copy is not None:
            self._copy(*copy)
        compute.record(self._first)
        for _ in range(calls):
            compute.launch(co_runner)
        compute.record(self._last)
        self._device.synchronize()
        copy_ns = 0 if copy is None else self._device.elapsed_ns(self._begin, self._end)
        return self._device.elapsed_ns(self._first, self._last), copy_ns

    def call_us(self) -> float:
        """Return the microseconds that the compute stream loses by recording an event and waiting for a reached one."""
        begin, end, mark, reached = self._first, self._last, self._begin, self._end
        self._device.inward.record(reached)
        self._device.synchronize()
        compute = self._device.compute
        compute.record(begin)
        for _ in range(_CALLS):
            compute.record(mark)
            compute.wait(reached)
        compute.record(end)
        self._device.synchronize()
        return self._device.elapsed_ns(begin, end) / _CALLS / 1e3

    def _stream(self, tier: Tier) -> CudaStream:
        return self._device.inward if tier is Tier.FAST else self._device.outward

    def _copy(self, tier: Tier, size_bytes: int) -> None:
        fast, slow = (Span(pool, 0, size_bytes) for pool in (self._device.device_pool, self._device.host_pool))
        stream = self._stream(tier)
        stream.record(self._begin)
        stream.copy(*((fast, slow) if tier is Tier.FAST else (slow, fast)))
        stream.record(self._end)
