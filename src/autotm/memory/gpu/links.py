"""What copies take on a device, alone and beside kernels, from event to event on the streams that programs use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from autotm.memory.gpu.interface import Device, Span, Stream
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.links import AsynchronousLinks, Contention, Link, Links

DEVICE_LINK_BYTES = tuple(4096 * 4**power for power in range(9))
"""4 KiB to 256 MiB: below, a copy takes what its calls take; above, its bandwidth no longer changes."""
_REPEATS = 15
_CALLS = 100
_LEAST_SIZES = 2
CoRunner = Callable[[], None]


def device_links(
    device: Device,
    flop_per_s: float,
    co_runners: Mapping[OpClass, CoRunner],
    sizes_bytes: Sequence[int] = DEVICE_LINK_BYTES,
    repeats: int = _REPEATS,
) -> Links:
    """Time copies in both directions: the median of each size, after one that does not count.

    A blocking copy is timed as the step sees it, from the kernel before it to the one after it. What copies and
    kernels take from each other is measured on `co_runners`, launched one after the other for as long as the longest
    copy takes.

    Args:
        device: with pools of at least the largest size; its streams stand still.
        flop_per_s: measured rate of its contractions.
        co_runners: what launches a kernel of each op class on the compute stream; all op classes.
        sizes_bytes: to measure, at least two, ascending.
        repeats: of each.

    Raises:
        BadInputError: a pool is too small, or there are too few sizes.
    """
    least = min(device.device_pool.size_bytes, device.host_pool.size_bytes)
    if len(sizes_bytes) < _LEAST_SIZES or sizes_bytes[-1] > least:
        raise BadInputError(
            f"links of {device.name}: sizes {list(sizes_bytes)}; give two at least, the largest no more than the "
            f"smaller pool's {least} bytes"
        )
    blocking, alone, beside = {}, {}, {}
    for tier in Tier:
        engine = _Engine(device, tier)
        blocking[tier] = Link(tier, engine.curve(engine.blocking_ns, sizes_bytes, repeats))
        alone[tier] = Link(tier, engine.curve(engine.alone_ns, sizes_bytes, repeats))
        beside[tier] = {
            op_class: engine.contention(co_runner, sizes_bytes[-1], repeats)
            for op_class, co_runner in co_runners.items()
        }
    asynchronous = AsynchronousLinks(
        alone[Tier.DRAM], alone[Tier.PMEM], beside[Tier.DRAM], beside[Tier.PMEM], _call_us(device)
    )
    return Links(blocking[Tier.DRAM], blocking[Tier.PMEM], flop_per_s, 1.0, asynchronous)


class _Engine:
    """Copies to one tier."""

    def __init__(self, device: Device, tier: Tier) -> None:
        self._device = device
        self._to_fast = tier is Tier.DRAM
        self._stream: Stream = device.inward if self._to_fast else device.outward
        self._begin, self._end, self._mark, self._done = (device.event(timed=True) for _ in range(4))
        self._first, self._last = (device.event(timed=True) for _ in range(2))

    def curve(
        self, timed: Callable[[int], int], sizes_bytes: Sequence[int], repeats: int
    ) -> tuple[tuple[int, int], ...]:
        """Bytes and the median of nanoseconds."""
        found = []
        for size_bytes in sizes_bytes:
            timed(size_bytes)
            found.append((size_bytes, round(median(timed(size_bytes) for _ in range(repeats)))))
        return tuple(found)

    def alone_ns(self, size_bytes: int) -> int:
        """A copy with nothing beside it."""
        self._copy(size_bytes)
        self._device.synchronize()
        return self._device.elapsed_ns(self._begin, self._end)

    def blocking_ns(self, size_bytes: int) -> int:
        """From the point at which the compute stream hands over to the one at which it goes on."""
        compute = self._device.compute
        compute.record(self._first)
        self._stream.wait(self._first)
        self._copy(size_bytes)
        compute.wait(self._end)
        compute.record(self._last)
        self._device.synchronize()
        return self._device.elapsed_ns(self._first, self._last)

    def contention(self, co_runner: CoRunner, size_bytes: int, repeats: int) -> Contention:
        """What a copy and kernels that run all the while take from each other, over the copy's own time."""
        self._kernels_ns(co_runner, 1)
        one_ns = max(1, self._kernels_ns(co_runner, 1))
        alone_ns = max(1, round(median(self.alone_ns(size_bytes) for _ in range(repeats))))
        calls = math.ceil(1.5 * alone_ns / one_ns)  # Longer than the copy: all of it has kernels beside it.
        to_kernels, to_copy = [], []
        for _ in range(repeats):
            without_ns = self._kernels_ns(co_runner, calls)
            self._copy(size_bytes)
            with_ns = self._kernels_ns(co_runner, calls)
            to_kernels.append(with_ns - without_ns)
            to_copy.append(self._device.elapsed_ns(self._begin, self._end) - alone_ns)
        return Contention(max(0.0, median(to_kernels) / alone_ns), max(0.0, median(to_copy) / alone_ns))

    def _kernels_ns(self, co_runner: CoRunner, calls: int) -> int:
        compute = self._device.compute
        compute.record(self._mark)
        for _ in range(calls):
            compute.launch(co_runner)
        compute.record(self._done)
        self._device.synchronize()
        return self._device.elapsed_ns(self._mark, self._done)

    def _copy(self, size_bytes: int) -> None:
        fast, slow = (Span(pool, 0, size_bytes) for pool in (self._device.device_pool, self._device.host_pool))
        self._stream.record(self._begin)
        self._stream.copy(*((fast, slow) if self._to_fast else (slow, fast)))
        self._stream.record(self._end)


def _call_us(device: Device) -> float:
    """Microseconds that the compute stream loses by recording an event and waiting for one that is long reached."""
    begin, end, mark, reached = (device.event(timed=True) for _ in range(4))
    device.inward.record(reached)
    device.synchronize()
    device.compute.record(begin)
    for _ in range(_CALLS):
        device.compute.record(mark)
        device.compute.wait(reached)
    device.compute.record(end)
    device.synchronize()
    return device.elapsed_ns(begin, end) / _CALLS / 1e3
