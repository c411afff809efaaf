"""An opened GPU: its streams and events, and its pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.cuda_memory import CudaMemory, PinnedMemory, Runtime, Span, load_runtime, text_of
from autotm.model.errors import AutotmError

# What a program needs of a GPU: two pools, three streams, events. Tests have threads that behave like one.


@dataclass(eq=False)
class CudaEvent:
    """A point in a stream's work. Recorded again, it is another point: who waited for the former waits for that."""

    runtime: Runtime
    handle: Any

    def synchronize(self) -> None:
        """Hold the calling thread until the point recorded last is reached; not at all before the first."""
        self.runtime.call("cudaEventSynchronize", self.handle)


class CudaStream:
    """Work done in the order in which it was handed over, beside the calling thread and beside other streams.

    It does not wait for the default stream, nor that for it. Every method but `synchronize` returns at once.

    Attributes:
        name: `compute`, `inward` or `outward`.
        handle: its `cudaStream_t` as a number.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self._stream = runtime.call("cudaStreamCreateWithFlags", runtime.module.cudaStreamNonBlocking)
        self.handle = int(self._stream)

    def launch(self, work: Callable[[], None], reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> None:
        """Queue a kernel.

        Args:
            work: calls it. It is called at once, and must itself launch on this stream.
            reads: bytes that it reads, for whoever checks the order.
            writes: bytes that it writes, likewise.
        """
        del reads, writes
        work()

    def copy(self, destination: Span, source: Span) -> None:
        """Queue a copy of all bytes of `source`, between the two pools.

        Raises:
            AutotmError: the sizes differ, or a span leaves its pool.
        """
        for span in (destination, source):
            span.memory.check(span.start, span.size_bytes)
        if destination.size_bytes != source.size_bytes:
            raise AutotmError(f"{self.name} stream: copy of {source.size_bytes} bytes into {destination.size_bytes}")
        self.copy_bytes(destination.address, source.address, source.size_bytes)

    def copy_bytes(self, destination: int, source: int, size_bytes: int) -> None:
        """Queue a copy between addresses of the device or the host."""
        kind = self._runtime.module.cudaMemcpyKind.cudaMemcpyDefault
        self._runtime.call("cudaMemcpyAsync", destination, source, size_bytes, kind, self._stream)

    def fill(self, span: Span, byte: int) -> None:
        """Queue the filling of a span with one byte, 0 to 255."""
        span.memory.check(span.start, span.size_bytes)
        self._runtime.call("cudaMemsetAsync", span.address, byte, span.size_bytes, self._stream)

    def record(self, event: CudaEvent) -> None:
        """Make `event` the point at which all work queued here so far is done."""
        self._runtime.call("cudaEventRecord", event.handle, self._stream)

    def wait(self, event: CudaEvent) -> None:
        """Hold back what is queued here from now on until the point that `event` has now; none before the first."""
        self._runtime.call("cudaStreamWaitEvent", self._stream, event.handle, 0)

    def synchronize(self) -> None:
        """Hold the calling thread until all work queued here is done.

        Raises:
            AutotmError: some of the device's work failed.
        """
        self._runtime.call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give the stream back."""
        self._runtime.call("cudaStreamDestroy", self._stream)


class CudaDevice(AbstractContextManager["CudaDevice"]):
    """The GPU's primary context, which TVM and PyTorch share; a context manager that gives everything back.

    Args:
        index: CUDA's number of the GPU.
        device_bytes: of the pool in its memory.
        host_bytes: of the pool in pinned memory of the host.
        allowed_bytes: makes the first pool managed memory, of which so much may be on the GPU at a time.

    Attributes:
        free_bytes: device memory that was free when the context was made and no pool yet.
        name: of the model, for records.
        device_pool, host_pool: fast and slow memory.
        compute, inward, outward: streams of kernels, of copies to the device, and of copies to the host.

    Raises:
        AutotmError: no driver, one that is too old, no such GPU, or memory that is not to be had.
    """

    def __init__(self, index: int, device_bytes: int, host_bytes: int, *, allowed_bytes: int | None = None) -> None:
        self._runtime = runtime = load_runtime()
        with ExitStack() as opened:
            runtime.call("cudaSetDevice", index)
            self.free_bytes = int(runtime.call("cudaMemGetInfo")[0])
            self.name = text_of(runtime.call("cudaGetDeviceProperties", index).name)
            self.device_pool = opened.enter_context(closing(CudaMemory(runtime, index, device_bytes, allowed_bytes)))
            self.host_pool = opened.enter_context(closing(PinnedMemory(runtime, host_bytes)))
            self.compute, self.inward, self.outward = (
                opened.enter_context(closing(CudaStream(runtime, name))) for name in ("compute", "inward", "outward")
            )
            self._events = opened.enter_context(ExitStack())
            self._opened = opened.pop_all()

    def event(self, *, timed: bool = False) -> CudaEvent:
        """Return a new event; `timed` ones can be asked for the time between them, and cost more."""
        module = self._runtime.module
        flags = module.cudaEventDefault if timed else module.cudaEventDisableTiming
        event = CudaEvent(self._runtime, self._runtime.call("cudaEventCreateWithFlags", flags))
        self._events.callback(self._runtime.call, "cudaEventDestroy", event.handle)
        return event

    def elapsed_ns(self, start: CudaEvent, end: CudaEvent) -> int:
        """Return the nanoseconds from one timed event to another, both reached; CUDA resolves about 500.

        Raises:
            AutotmError: one was not recorded, is not reached, or is not timed.
        """
        return round(float(self._runtime.call("cudaEventElapsedTime", start.handle, end.handle)) * 1e6)

    def read(self, span: Span) -> npt.NDArray[Any]:
        """Return a copy of the bytes of a span, in ordinary host memory; for when the streams stand still."""
        span.memory.check(span.start, span.size_bytes)
        array = np.empty(span.size_bytes, np.uint8)
        self.compute.copy_bytes(array.ctypes.data, span.address, span.size_bytes)
        self.compute.synchronize()
        return array

    def write(self, span: Span, array: npt.NDArray[Any]) -> None:
        """Overwrite a span with the bytes of an array; for when the streams stand still.

        Raises:
            AutotmError: the sizes differ.
        """
        span.memory.check(span.start, span.size_bytes)
        if array.nbytes != span.size_bytes:
            raise AutotmError(f"{span.memory.name} pool: {array.nbytes} bytes for a span of {span.size_bytes}")
        source = np.ascontiguousarray(array)
        self.compute.copy_bytes(span.address, source.ctypes.data, source.nbytes)
        self.compute.synchronize()

    def synchronize(self) -> None:
        """Hold the calling thread until all work of all streams is done.

        Raises:
            AutotmError: some of it failed.
        """
        for stream in (self.compute, self.inward, self.outward):
            stream.synchronize()

    def close(self) -> None:
        """Wait for all work and give everything back; nothing can be asked after it."""
        try:
            self.synchronize()
        finally:
            self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()
