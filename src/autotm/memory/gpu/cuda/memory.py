"""The pools of a GPU: its own memory, and pinned memory of its host."""

from __future__ import annotations

import ctypes
import math
import resource
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from autotm.memory.gpu.cuda.dlpack import CUDA, DeviceArray
from autotm.memory.gpu.cuda.runtime import CudaError, Runtime
from autotm.memory.gpu.interface import DeviceMemoryError, Span
from autotm.model.files import AutotmError
from autotm.model.step import ALIGNMENT_BYTES

_NO_MEMORY = "cudaErrorMemoryAllocation"


class CudaMemory:
    """As `interface.DeviceMemory`, of the current GPU.

    Raises:
        DeviceMemoryError: the GPU does not give the memory.
    """

    def __init__(self, runtime: Runtime, index: int, size_bytes: int) -> None:
        self.name = "device"
        self.size_bytes = size_bytes
        self._runtime = runtime
        self._index = index
        try:
            self.address = self._taken(max(size_bytes, 1))
        except CudaError as error:
            if error.name != _NO_MEMORY:
                raise
            free_bytes, total_bytes = runtime.call("cudaMemGetInfo")
            raise DeviceMemoryError(
                f"GPU {index}: {size_bytes / 1e9:.3f} GB are not to be had in one piece; {free_bytes / 1e9:.3f} of its "
                f"{total_bytes / 1e9:.3f} GB are free: ask for a smaller limit or batch, or end what else uses it "
                "(nvidia-smi)"
            ) from None

    def _taken(self, size_bytes: int) -> int:
        return int(self._runtime.call("cudaMalloc", size_bytes))

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """The array at `offset`."""
        kind = np.dtype(dtype)
        check_view(self.name, self.size_bytes, offset, math.prod(shape) * kind.itemsize)
        return DeviceArray(self.address + offset, shape, kind, (CUDA, self._index), self)

    def close(self) -> None:
        """Give the memory back."""
        if self.address:
            self._runtime.call("cudaFree", self.address)
        self.address = self.size_bytes = 0


class PinnedMemory:
    """As `interface.DeviceMemory`, in page-locked memory of the host: views are NumPy arrays.

    Raises:
        AutotmError: the system does not let so much memory be pinned.
    """

    def __init__(self, runtime: Runtime, size_bytes: int) -> None:
        self.name = "host"
        self.size_bytes = size_bytes
        self._runtime = runtime
        self.address = self._pinned(max(size_bytes, 1))
        held = (ctypes.c_uint8 * size_bytes).from_address(self.address)
        self._bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array(held)

    def _pinned(self, size_bytes: int) -> int:
        available = psutil.virtual_memory().available
        if size_bytes > available:  # To pin more would have the system end other processes.
            raise _refused(size_bytes, f"{available / 1e9:.3f} GB of the host's memory are free")
        default = self._runtime.module.cudaHostAllocDefault
        try:
            return int(self._runtime.call("cudaHostAlloc", size_bytes, default))
        except CudaError as error:
            raise _refused(size_bytes, str(error)) from None

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The array at `offset`."""
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        check_view(self.name, self.size_bytes, offset, size_bytes)
        return self._bytes[offset : offset + size_bytes].view(dtype).reshape(shape)

    def close(self) -> None:
        """Give the memory back; no view may be used after it."""
        self._bytes = np.empty(0, np.uint8)
        if self.address:
            self._runtime.call("cudaFreeHost", self.address)
        self.address = self.size_bytes = 0


def check_view(name: str, pool_bytes: int, offset: int, size_bytes: int) -> None:
    """Refuse what is not aligned, or leaves the pool.

    Raises:
        AutotmError: it is so.
    """
    check_span(name, pool_bytes, offset, size_bytes)
    if offset % ALIGNMENT_BYTES:
        raise AutotmError(f"{name} pool: offset {offset} is not a multiple of {ALIGNMENT_BYTES} bytes")


def check_span(name: str, pool_bytes: int, start: int, size_bytes: int) -> None:
    """Refuse bytes that leave the pool.

    Raises:
        AutotmError: they do.
    """
    if start < 0 or start + size_bytes > pool_bytes:
        raise AutotmError(f"{name} pool: bytes [{start}, {start + size_bytes}) leave its {pool_bytes} bytes")


def require_inside(span: Span) -> None:
    """Refuse a span that leaves its pool.

    Raises:
        AutotmError: it does.
    """
    check_span(span.memory.name, span.memory.size_bytes, span.start, span.size_bytes)


def _refused(size_bytes: int, reason: str) -> AutotmError:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    said = "no limit" if limit == resource.RLIM_INFINITY else f"{limit / 1e9:.3f} GB"
    return AutotmError(
        f"pinned memory: {size_bytes / 1e9:.3f} GB refused ({reason}; limit on locked memory: {said}): raise it with "
        "ulimit -l unlimited, of a container with --ulimit memlock=-1, or ask for a larger limit of device memory, so "
        "that less is moved out"
    )
