"""Streams and events of CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotm.memory.gpu.cuda.memory import require_inside
from autotm.memory.gpu.cuda.runtime import Runtime
from autotm.memory.gpu.interface import Event, Span
from autotm.model.files import AutotmError


@dataclass(eq=False)
class CudaEvent:
    """As `interface.Event`."""

    runtime: Runtime
    handle: Any

    def synchronize(self) -> None:
        """Hold the calling thread until the point recorded last is reached."""
        self.runtime.call("cudaEventSynchronize", self.handle)


class CudaStream:
    """As `interface.Stream`: one that does not wait for the default stream, nor that for it."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self._stream = runtime.call("cudaStreamCreateWithFlags", runtime.module.cudaStreamNonBlocking)
        self.handle = int(self._stream)
        self._copying = runtime.module.cudaMemcpyKind.cudaMemcpyDefault

    def launch(self, work: Callable[[], None], reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> None:
        """Call what launches a kernel on this stream."""
        del reads, writes
        work()

    def copy(self, destination: Span, source: Span) -> None:
        """Queue a copy."""
        for span in (destination, source):
            require_inside(span)
        if destination.size_bytes != source.size_bytes:
            raise AutotmError(f"{self.name} stream: copy of {source.size_bytes} bytes into {destination.size_bytes}")
        self._runtime.call(
            "cudaMemcpyAsync", destination.address, source.address, source.size_bytes, self._copying, self._stream
        )

    def fill(self, span: Span, byte: int) -> None:
        """Queue the filling of a span."""
        require_inside(span)
        self._runtime.call("cudaMemsetAsync", span.address, byte, span.size_bytes, self._stream)

    def record(self, event: Event) -> None:
        """Make `event` the point at which all work queued here so far is done."""
        assert isinstance(event, CudaEvent)
        self._runtime.call("cudaEventRecord", event.handle, self._stream)

    def wait(self, event: Event) -> None:
        """Hold back what is queued from now on until the point that `event` has now."""
        assert isinstance(event, CudaEvent)
        self._runtime.call("cudaStreamWaitEvent", self._stream, event.handle, 0)

    def synchronize(self) -> None:
        """Hold the calling thread until all work queued here is done."""
        self._runtime.call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give the stream back."""
        self._runtime.call("cudaStreamDestroy", self._stream)
