"""An opened GPU: its streams and events, its pools, and launches of machine code that its driver loads."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.cuda_memory import (
    CudaMemory,
    ManagedMemory,
    PinnedMemory,
    Runtime,
    load_runtime,
    require_inside,
    text_of,
)
from autotm.memory.gpu.interface import Event, Span
from autotm.model.errors import AutotmError
from autotm.model.graph import Launch

# Streams and events of CUDA.


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


# Machine code on a GPU: a fatbin that the driver loads, and launches of its functions.
_REMEDIES = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernels are built for other GPUs: compile them again for this one's sm",
    "CUDA_ERROR_INVALID_IMAGE": "the file of kernels is damaged: make it again",
    "CUDA_ERROR_NOT_FOUND": "the kernels belong to another graph: make both again",
}
Call = Callable[[], None]


@dataclass(frozen=True)
class CudaCode:
    """A loaded fatbin.

    Attributes:
        driver: the module `cuda.bindings.driver`.
    """

    driver: Any
    _library: Any = field(repr=False)

    @classmethod
    def load(cls, image: bytes, driver: Any = None) -> CudaCode:
        """Have the driver load a fatbin; the device's context must be there.

        Args:
            image: its bytes.
            driver: the module `cuda.bindings.driver`; None loads it.

        Raises:
            AutotmError: it has no code for this GPU, or is no fatbin.
        """
        module = importlib.import_module("cuda.bindings.driver") if driver is None else driver
        library = _called(module, "cuLibraryLoadData", image, [], [], 0, [], [], 0)
        return cls(module, library)

    def bound(self, launches: Sequence[Launch], addresses: Sequence[int], stream: CudaStream) -> Call:
        """The launches of a kernel on operands at these addresses, as one call that returns when all are queued.

        Args:
            launches: in order.
            addresses: of inputs, outputs, then workspaces.
            stream: to launch on.

        Raises:
            AutotmError: the code has no such function.
        """
        calls = [self._launch(launch, [addresses[place] for place in launch.arguments], stream) for launch in launches]

        def call() -> None:
            for each in calls:
                each()

        return calls[0] if len(calls) == 1 else call

    def close(self) -> None:
        """Unload it; nothing of it may run any more."""
        _called(self.driver, "cuLibraryUnload", self._library)

    def _launch(self, launch: Launch, addresses: Sequence[int], stream: CudaStream) -> Call:
        kernel = _called(self.driver, "cuLibraryGetKernel", self._library, launch.function.encode())
        function = self.driver.CUfunction(int(kernel))
        parameters = tuple(addresses), (ctypes.c_void_p,) * len(addresses)
        return functools.partial(
            _called, self.driver, "cuLaunchKernel", function, *launch.grid, *launch.block, 0, stream.handle,
            parameters, 0,
        )  # fmt: skip


def _called(driver: Any, function: str, *arguments: Any) -> Any:
    error, *given = getattr(driver, function)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        name = str(getattr(error, "name", error))
        remedy = _REMEDIES.get(name)
        raise AutotmError(f"CUDA: {function}: {name}" + (f": {remedy}" if remedy else ""))
    return given[0] if given else None
