"""The calls of `cuda.bindings.runtime` that a device makes, played on host memory and threads, as CUDA answers them.

Everything returns an error code and then its results, handles are opaque, an event never recorded is not waited for,
and memory is handed out once. What it cannot show is that a GPU takes these calls the same way.
"""

# ruff: noqa: ARG002, N802, N815 - names and arguments are NVIDIA's

from __future__ import annotations

import ctypes
import enum
import itertools
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recorded_nvml import Recorded
from thread_device import Crew, Order, ThreadEvent, ThreadStream


class Codes(enum.Enum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidValue = 1
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidResourceHandle = 400


class PlayedRuntime:
    """`module` of a `Runtime`: a GPU of `device_bytes` in pieces of `largest_bytes`; the host pins `host_bytes`.

    Managed memory may be larger if it is `concurrent`; `order` is when its streams' work begins.
    """

    cudaError_t = Codes
    cudaStreamNonBlocking = 1
    cudaEventDefault = 0
    cudaEventDisableTiming = 2
    cudaHostAllocDefault = 0
    cudaMemAttachGlobal = 1
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyDefault=4)
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrConcurrentManagedAccess=89)

    def __init__(
        self,
        device_bytes: int = 1 << 30,
        host_bytes: int = 1 << 30,
        order: Order | None = None,
        *,
        concurrent: bool = True,
        largest_bytes: int = 1 << 40,
    ) -> None:
        self.concurrent, self.largest_bytes, self.device_bytes = concurrent, largest_bytes, device_bytes
        self.free = {"device": device_bytes, "host": host_bytes, "managed": 1 << 40}
        self.memory: dict[int, tuple[str, np.ndarray]] = {}
        self.streams: dict[int, ThreadStream] = {}
        self.events: dict[int, tuple[ThreadEvent, int]] = {}
        self._crew = Crew(order or Order(), None)
        self._handles = itertools.count(0x5000, 16)

    def cudaGetErrorString(self, error: Codes) -> tuple[Codes, bytes]:
        return Codes.cudaSuccess, error.name.encode()

    def cudaSetDevice(self, index: int) -> tuple[Codes]:
        return (Codes.cudaSuccess if index == 0 else Codes.cudaErrorInvalidDevice,)

    def cudaGetDeviceProperties(self, index: int) -> tuple[Codes, Any]:
        return Codes.cudaSuccess, SimpleNamespace(name=b"a played GPU")

    def cudaDeviceGetPCIBusId(self, size: int, index: int) -> tuple[Codes, bytes]:
        """The buffer as the bindings make it: blanks, into which CUDA wrote a C string."""
        return Codes.cudaSuccess, f"0000:0{index + 1}:00.0\0".encode().ljust(size)

    def cudaDeviceGetByPCIBusId(self, bus_id: bytes) -> tuple[Codes, int]:
        return (Codes.cudaSuccess, 0) if bus_id.endswith(b"01:00.0") else (Codes.cudaErrorInvalidValue, 0)

    def cudaMemGetInfo(self) -> tuple[Codes, int, int]:
        return Codes.cudaSuccess, self.free["device"], self.device_bytes

    def cudaDeviceGetAttribute(self, attribute: int, index: int) -> tuple[Codes, int]:
        assert attribute == self.cudaDeviceAttr.cudaDevAttrConcurrentManagedAccess
        return Codes.cudaSuccess, int(self.concurrent)

    def cudaMalloc(self, size_bytes: int) -> tuple[Codes, int]:
        if size_bytes > self.largest_bytes:
            return Codes.cudaErrorMemoryAllocation, 0
        return self._given("device", size_bytes)

    def cudaMallocManaged(self, size_bytes: int, flags: int) -> tuple[Codes, int]:
        """Takes no memory of the GPU until it is touched, and then as much as is free."""
        assert flags == self.cudaMemAttachGlobal
        assert size_bytes
        return self._given("managed", size_bytes)

    def cudaHostAlloc(self, size_bytes: int, flags: int) -> tuple[Codes, int]:
        return self._given("host", size_bytes)

    def cudaFree(self, address: int) -> tuple[Codes]:
        return self._taken({"device", "managed"}, address)

    def cudaFreeHost(self, address: int) -> tuple[Codes]:
        return self._taken({"host"}, address)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Codes, int]:
        assert flags == self.cudaStreamNonBlocking
        handle = next(self._handles)
        name = ("compute", "inward", "outward")[len(self.streams) % 3]
        self.streams[handle] = ThreadStream(name, self._crew, poison=False)
        return Codes.cudaSuccess, handle

    def cudaStreamDestroy(self, stream: int) -> tuple[Codes]:
        self.streams.pop(stream).close()
        return (Codes.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Codes]:
        self.streams[stream].synchronize()
        return (Codes.cudaSuccess,)

    def cudaMemcpyAsync(self, to: int, out_of: int, size_bytes: int, kind: int, stream: int) -> tuple[Codes]:
        assert kind == self.cudaMemcpyKind.cudaMemcpyDefault

        def copy() -> None:
            self.bytes_at(to, size_bytes)[:] = self.bytes_at(out_of, size_bytes)

        return self._queued(stream, copy)

    def cudaMemsetAsync(self, address: int, value: int, size_bytes: int, stream: int) -> tuple[Codes]:
        return self._queued(stream, lambda: self.bytes_at(address, size_bytes).fill(value))

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[Codes, int]:
        handle = next(self._handles)
        self.events[handle] = ThreadEvent(self._crew), flags
        return Codes.cudaSuccess, handle

    def cudaEventDestroy(self, event: int) -> tuple[Codes]:
        del self.events[event]
        return (Codes.cudaSuccess,)

    def cudaEventRecord(self, event: int, stream: int) -> tuple[Codes]:
        self.streams[stream].record(self.events[event][0])
        return (Codes.cudaSuccess,)

    def cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Codes]:
        assert flags == 0
        self.streams[stream].wait(self.events[event][0])
        return (Codes.cudaSuccess,)

    def cudaEventSynchronize(self, event: int) -> tuple[Codes]:
        self.events[event][0].synchronize()
        return (Codes.cudaSuccess,)

    def cudaEventElapsedTime(self, start: int, end: int) -> tuple[Codes, float]:
        (first, flags), (last, other_flags) = self.events[start], self.events[end]
        if flags or other_flags or first.point is None or last.point is None:
            return Codes.cudaErrorInvalidResourceHandle, 0.0
        return Codes.cudaSuccess, (last.point.reached_ns - first.point.reached_ns) / 1e6

    def bytes_at(self, address: int, size_bytes: int) -> np.ndarray:
        """Bytes of device or pinned memory, or of any other of the host's."""
        for start, (_, memory) in self.memory.items():
            if start <= address and address + size_bytes <= start + memory.nbytes:
                return memory[address - start : address - start + size_bytes]
        return np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), np.uint8)

    def _queued(self, stream: int, work: Callable[[], None]) -> tuple[Codes]:
        self.streams[stream].launch(work)
        return (Codes.cudaSuccess,)

    def _given(self, kind: str, size_bytes: int) -> tuple[Codes, int]:
        if size_bytes > self.free[kind]:
            return Codes.cudaErrorMemoryAllocation, 0
        self.free[kind] -= size_bytes
        memory = np.full(size_bytes + 256, 0xFF, np.uint8)
        aligned = memory[-memory.ctypes.data % 256 :][:size_bytes]
        self.memory[aligned.ctypes.data] = kind, aligned
        return Codes.cudaSuccess, aligned.ctypes.data

    def _taken(self, kinds: set[str], address: int) -> tuple[Codes]:
        kind, memory = self.memory.pop(address)
        assert kind in kinds
        self.free[kind] += memory.nbytes
        return (Codes.cudaSuccess,)


class Results(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_NOT_FOUND = 500


class PlayedDriver:
    """The module `cuda.bindings.driver`; a fatbin is b"fatbin", its functions, by name, are Python's.

    They are called with a launch's extents, grid and block, and its addresses, on the streams of `runtime`.
    """

    CUresult = Results
    CUfunction = int

    def __init__(self, runtime: PlayedRuntime, functions: Mapping[str, Callable[..., None]]) -> None:
        self.runtime = runtime
        self.functions = list(functions.items())

    def cuLibraryLoadData(self, image: bytes, *options: Any) -> tuple[Results, int]:
        assert options == ([], [], 0, [], [], 0)
        return (Results.CUDA_SUCCESS, 77) if image == b"fatbin" else (Results.CUDA_ERROR_INVALID_IMAGE, 0)

    def cuLibraryGetKernel(self, library: int, name: bytes) -> tuple[Results, int]:
        names = [known for known, _ in self.functions]
        if name.decode() not in names:
            return Results.CUDA_ERROR_NOT_FOUND, 0
        return Results.CUDA_SUCCESS, names.index(name.decode()) + 1

    def cuLaunchKernel(self, function: int, *arguments: Any) -> tuple[Results]:
        *extents, shared_bytes, stream, (values, types), extra = arguments
        assert (len(extents), shared_bytes, extra) == (6, 0, 0)
        assert set(types) <= {ctypes.c_void_p}
        _, work = self.functions[function - 1]
        self.runtime.streams[stream].launch(lambda: work(extents, values))
        return (Results.CUDA_SUCCESS,)


def plug_in(
    monkeypatch: pytest.MonkeyPatch,
    runtime: PlayedRuntime,
    functions: Mapping[str, Callable[..., None]] = {},
    nvml: Recorded | None = None,
) -> PlayedRuntime:
    """Put NVIDIA's modules, played, in their places: a computer with an H100 that has these kernels."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", PlayedDriver(runtime, functions))
    monkeypatch.setitem(sys.modules, "pynvml", nvml or Recorded())
    return runtime
