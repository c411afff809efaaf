"""The device: two pools, three streams, and the time between events by the clock of the processor."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.interface import Event, Span
from autotm.memory.gpu.threads.crew import Crew, ThreadEvent
from autotm.memory.gpu.threads.memory import ThreadMemory, bytes_of
from autotm.memory.gpu.threads.order import Order
from autotm.memory.gpu.threads.races import Races
from autotm.memory.gpu.threads.stream import ThreadStream
from autotm.model.files import AutotmError
from autotm.model.step import Tier

STREAMS = ("compute", "inward", "outward")


class ThreadDevice:
    """As `interface.Device`, on a computer without a GPU; nothing of its times says anything about one.

    Args:
        device_bytes: of the pool that plays device memory.
        host_bytes: of the other.
        order: when work begins.
        poison: what work is about to write is made NaN before it is put off.
        races: check that events order all work that touches the same bytes; see `Races`.

    Raises:
        AutotmError: the system does not give the memory.
    """

    def __init__(
        self,
        device_bytes: int,
        host_bytes: int,
        *,
        order: Order | None = None,
        poison: bool = False,
        races: bool = False,
    ) -> None:
        self.name = "threads"
        self.index = -1
        self.device_pool = ThreadMemory("device", Tier.DRAM, device_bytes)
        self.host_pool = ThreadMemory("host", Tier.PMEM, host_bytes)
        self._races = Races(STREAMS) if races else None
        self._crew = Crew(order or Order(), self._races)
        self.compute, self.inward, self.outward = (ThreadStream(name, self._crew, poison=poison) for name in STREAMS)

    def event(self, *, timed: bool = False) -> ThreadEvent:
        """A new event; all are timed."""
        del timed
        return ThreadEvent(self._crew)

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Nanoseconds from one event to another."""
        assert isinstance(start, ThreadEvent)
        assert isinstance(end, ThreadEvent)
        if not (start.point and end.point and start.point.reached_ns and end.point.reached_ns):
            raise AutotmError("device of threads: the time was asked of an event that is not recorded, or not reached")
        return end.point.reached_ns - start.point.reached_ns

    def read(self, span: Span) -> npt.NDArray[Any]:
        """A copy of the bytes of a span."""
        return bytes_of(span).copy()

    def write(self, span: Span, array: npt.NDArray[Any]) -> None:
        """Overwrite a span."""
        if array.nbytes != span.size_bytes:
            raise AutotmError(f"{span.memory.name} pool: {array.nbytes} bytes for a span of {span.size_bytes}")
        bytes_of(span)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def synchronize(self) -> None:
        """Hold the calling thread until all streams stand still."""
        self._crew.host_waits(lambda: all(not stream.is_running() for stream in self._streams))
        if self._races is not None:
            self._races.still()
        self._crew.require_whole()

    def close(self) -> None:
        """End the threads and give the memory back."""
        for stream in self._streams:
            stream.close()
        self.device_pool.close()
        self.host_pool.close()

    @property
    def _streams(self) -> tuple[ThreadStream, ...]:
        return self.compute, self.inward, self.outward

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
