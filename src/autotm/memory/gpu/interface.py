"""What a program needs of a GPU: two pools, three streams, events. Tests run on threads that behave like one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy.typing as npt

from autotm.model.errors import AutotmError


class DeviceMemoryError(AutotmError):
    """A device has less memory than is asked for."""


class DeviceMemory(Protocol):
    """A pool: one allocation, made when its device was opened, given back when that is closed.

    Attributes:
        name: `device` or `host`.
        size_bytes: of the pool.
        address: of its first byte, as the device sees it.
    """

    name: str
    size_bytes: int
    address: int

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        """What starts `offset` bytes into the pool, without a copy, as an object with an `address`.

        A NumPy array where the processor can address the memory: always for the host's pool.

        Raises:
            AutotmError: the offset is not a multiple of 64, or the array leaves the pool.
        """


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, start + size_bytes) of a pool."""

    memory: DeviceMemory
    start: int
    size_bytes: int

    @property
    def stop(self) -> int:
        """The first byte after it."""
        return self.start + self.size_bytes

    @property
    def address(self) -> int:
        """Of its first byte, as the device sees it."""
        return self.memory.address + self.start

    def overlaps(self, other: Span) -> bool:
        """Whether the two share a byte."""
        return self.memory is other.memory and self.start < other.stop and other.start < self.stop


class Event(Protocol):
    """A point in a stream's work. Recorded again, it is another point: who waited for the former waits for that."""

    def synchronize(self) -> None:
        """Hold the calling thread until the point recorded last is reached; not at all before the first."""


class Stream(Protocol):
    """Work done in the order in which it was handed over, beside the calling thread and beside other streams.

    Every method but `synchronize` returns at once.

    Attributes:
        name: `compute`, `inward` or `outward`.
        handle: a `cudaStream_t` as a number; 0 where there is none.
    """

    name: str
    handle: int

    def launch(self, work: Callable[[], None], reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> None:
        """Queue a kernel.

        Args:
            work: calls it. It is called at once, and must itself launch on this stream.
            reads: bytes that it reads, for whoever checks the order.
            writes: bytes that it writes, likewise.
        """

    def copy(self, destination: Span, source: Span) -> None:
        """Queue a copy of all bytes of `source`, between the two pools.

        Raises:
            AutotmError: the sizes differ, or a span leaves its pool.
        """

    def fill(self, span: Span, byte: int) -> None:
        """Queue the filling of a span with one byte, 0 to 255."""

    def record(self, event: Event) -> None:
        """Make `event` the point at which all work queued here so far is done."""

    def wait(self, event: Event) -> None:
        """Hold back what is queued here from now on until the point that `event` has now; none before the first."""

    def synchronize(self) -> None:
        """Hold the calling thread until all work queued here is done.

        Raises:
            AutotmError: some of the device's work failed.
        """


class Device(Protocol):
    """An opened device; a context manager that waits for its work and gives its memory back.

    Attributes:
        name: of the model, for records.
    """

    name: str

    @property
    def device_pool(self) -> DeviceMemory:
        """The fast memory."""

    @property
    def host_pool(self) -> DeviceMemory:
        """The slow memory, pinned: copies to and from it run beside everything else."""

    @property
    def compute(self) -> Stream:
        """The stream of kernels."""

    @property
    def inward(self) -> Stream:
        """The stream of copies from the host's pool to the device's."""

    @property
    def outward(self) -> Stream:
        """The stream of copies from the device's pool to the host's."""

    def event(self, *, timed: bool = False) -> Event:
        """A new event; `timed` ones can be asked for the time between them, and cost more."""

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Nanoseconds from one timed event to another, both reached; CUDA resolves about 500.

        Raises:
            AutotmError: one was not recorded, is not reached, or is not timed.
        """

    def read(self, span: Span) -> npt.NDArray[Any]:
        """A copy of the bytes of a span, in ordinary host memory; for when the streams stand still."""

    def write(self, span: Span, array: npt.NDArray[Any]) -> None:
        """Overwrite a span with the bytes of an array; for when the streams stand still.

        Raises:
            AutotmError: the sizes differ.
        """

    def synchronize(self) -> None:
        """Hold the calling thread until all work of all streams is done.

        Raises:
            AutotmError: some of it failed.
        """

    def close(self) -> None:
        """Wait for all work and give the memory back; nothing can be asked after it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
