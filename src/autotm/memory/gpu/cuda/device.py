"""An opened GPU."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.cuda.managed import ManagedMemory
from autotm.memory.gpu.cuda.memory import CudaMemory, PinnedMemory, require_inside
from autotm.memory.gpu.cuda.runtime import Runtime, load_runtime, text_of
from autotm.memory.gpu.cuda.stream import CudaEvent, CudaStream
from autotm.memory.gpu.interface import Event, Span
from autotm.model.files import AutotmError


class CudaDevice:
    """As `interface.Device`: the GPU's primary context, which TVM and PyTorch share, with one pool in each memory.

    Args:
        index: CUDA's number of the GPU.
        device_bytes: of the pool in its memory.
        host_bytes: of the pool in pinned memory of the host.
        allowed_bytes: makes the first pool managed memory, of which so much may be on the GPU at a time.
        runtime: NVIDIA's bindings; None loads them.

    Attributes:
        free_bytes: device memory that was free when the context was made and no pool yet.

    Raises:
        AutotmError: no driver, one that is too old, no such GPU, or memory that is not to be had.
    """

    def __init__(
        self,
        index: int,
        device_bytes: int,
        host_bytes: int,
        *,
        allowed_bytes: int | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._runtime = runtime or load_runtime()
        call = self._runtime.call
        with ExitStack() as opened:
            call("cudaSetDevice", index)
            self.index = index
            self.free_bytes = int(call("cudaMemGetInfo")[0])
            self.name = text_of(call("cudaGetDeviceProperties", index).name)
            self.device_pool: CudaMemory = (
                CudaMemory(self._runtime, index, device_bytes)
                if allowed_bytes is None
                else ManagedMemory(self._runtime, index, device_bytes, allowed_bytes)
            )
            opened.callback(self.device_pool.close)
            self.host_pool = PinnedMemory(self._runtime, host_bytes)
            opened.callback(self.host_pool.close)
            self.compute, self.inward, self.outward = (
                self._opened_stream(name, opened) for name in ("compute", "inward", "outward")
            )
            self._events = opened.enter_context(ExitStack())
            self._opened = opened.pop_all()

    def keep_allowance(self) -> None:
        """Where the first pool is managed memory: take from the driver what is not allowed; nothing elsewhere.

        Raises:
            AutotmError: as of `ManagedMemory.hold_the_rest`.
        """
        if isinstance(self.device_pool, ManagedMemory):
            self.device_pool.hold_the_rest()

    def event(self, *, timed: bool = False) -> CudaEvent:
        """A new event."""
        module = self._runtime.module
        flags = module.cudaEventDefault if timed else module.cudaEventDisableTiming
        event = CudaEvent(self._runtime, self._runtime.call("cudaEventCreateWithFlags", flags))
        self._events.callback(self._runtime.call, "cudaEventDestroy", event.handle)
        return event

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Nanoseconds from one event to another."""
        assert isinstance(start, CudaEvent)
        assert isinstance(end, CudaEvent)
        return round(float(self._runtime.call("cudaEventElapsedTime", start.handle, end.handle)) * 1e6)

    def read(self, span: Span) -> npt.NDArray[Any]:
        """A copy of the bytes of a span."""
        require_inside(span)
        array = np.empty(span.size_bytes, np.uint8)
        self._copy(array.ctypes.data, span.address, span.size_bytes)
        return array

    def write(self, span: Span, array: npt.NDArray[Any]) -> None:
        """Overwrite a span."""
        require_inside(span)
        if array.nbytes != span.size_bytes:
            raise AutotmError(f"{span.memory.name} pool: {array.nbytes} bytes for a span of {span.size_bytes}")
        held = np.ascontiguousarray(array)
        self._copy(span.address, held.ctypes.data, held.nbytes)

    def synchronize(self) -> None:
        """Hold the calling thread until all streams stand still."""
        for stream in (self.compute, self.inward, self.outward):
            stream.synchronize()

    def close(self) -> None:
        """Wait for all work and give everything back."""
        try:
            self.synchronize()
        finally:
            self._opened.close()

    def _opened_stream(self, name: str, opened: ExitStack) -> CudaStream:
        stream = CudaStream(self._runtime, name)
        opened.callback(stream.close)
        return stream

    def _copy(self, to: int, out_of: int, size_bytes: int) -> None:
        """Copy to or from ordinary memory of the host; on the compute stream, so that it is done when this returns."""
        self._runtime.call(
            "cudaMemcpyAsync", to, out_of, size_bytes, self._runtime.module.cudaMemcpyKind.cudaMemcpyDefault,
            self.compute.handle,
        )  # fmt: skip
        self.compute.synchronize()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
