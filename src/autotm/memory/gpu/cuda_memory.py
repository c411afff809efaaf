"""CUDA's memory: calls of its runtime; device, pinned and managed memory, and arrays there."""

from __future__ import annotations

import ctypes
import importlib
import logging
import math
import resource
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from autotm.memory.gpu.interface import DeviceMemoryError, Span
from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES

# Calls of the CUDA runtime: what they return, or an error that says what was asked and what to do.

REMEDIES = {
    "cudaErrorInsufficientDriver": "no NVIDIA driver, or one older than CUDA 13 needs (580): install or update it",
    "cudaErrorNoDevice": "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorInvalidDevice": "there is no such GPU: correct device_index in the machine file",
    "cudaErrorDevicesUnavailable": "another process has the GPU for itself (nvidia-smi -q -d COMPUTE): end it, or wait",
    "cudaErrorSystemDriverMismatch": "the driver was updated while it ran: restart the computer",
}
"""By CUDA's name of an error."""


class CudaError(AutotmError):
    """A call of the CUDA runtime failed.

    Attributes:
        name: CUDA's name of the error.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Runtime:
    """The module `cuda.bindings.runtime`, whose functions return an error code and then what they give."""

    module: Any

    def call(self, function: str, *arguments: Any) -> Any:
        """What a function gives: nothing, one value, or a tuple.

        Raises:
            CudaError: it failed.
        """
        error, *given = getattr(self.module, function)(*arguments)
        if error != self.module.cudaError_t.cudaSuccess:
            raise self._failure(function, error)
        return given[0] if len(given) == 1 else tuple(given) or None

    def _failure(self, function: str, error: Any) -> CudaError:
        name = str(getattr(error, "name", error))
        _, text = self.module.cudaGetErrorString(error)
        remedy = REMEDIES.get(name)
        said = f"{function}: {text.decode()} ({name})"
        return CudaError(f"CUDA: {said}" + (f": {remedy}" if remedy else ""), name)


def text_of(value: bytes | str) -> str:
    """What C wrote into a buffer: it ends with a zero byte, behind which the bindings hand over blanks."""
    return (value.decode() if isinstance(value, bytes) else value).partition("\0")[0]


def load_runtime() -> Runtime:
    """NVIDIA's bindings.

    Raises:
        AutotmError: they are not installed.
    """
    try:
        return Runtime(importlib.import_module("cuda.bindings.runtime"))
    except ImportError as error:
        raise AutotmError(
            f"slow memory of kind cuda needs NVIDIA's bindings ({error}): pip install 'autotm[cuda]'"
        ) from None


@dataclass(frozen=True)
class DeviceArray:
    """`shape` elements at an address in device memory, in C order; the pool that has them must outlive it.

    Attributes:
        address: of the first element.
        shape: its axes.
        dtype: by NumPy.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


# The pools of a GPU: its own memory, and pinned memory of its host.

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
        return DeviceArray(self.address + offset, shape, kind)

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


# Memory that the GPU's driver moves by page faults, with no more device memory than it is allowed.

log = logging.getLogger(__name__)

_GRANULE = 2 << 20
"""Bytes: the driver moves managed memory in blocks of 2 MiB, and less than one is not worth holding."""
_AT_ONCE = 1 << 30
_SPARE = 0.01
"""Of what is allowed: so much more may be left to the driver where it is free, but not to be had."""


class ManagedMemory(CudaMemory):
    """As `CudaMemory`, by `cudaMallocManaged`: preferred places and prefetches are left to the driver.

    Args:
        runtime: NVIDIA's bindings.
        index: CUDA's number of the GPU, which is the current one.
        size_bytes: of the pool.
        allowed_bytes: device memory that the pool may have at a time.

    Attributes:
        held_bytes: device memory that `hold_the_rest` took away from the driver.

    Raises:
        AutotmError: the GPU cannot hold less of the pool than all of it, or the system does not give the memory.
    """

    def __init__(self, runtime: Runtime, index: int, size_bytes: int, allowed_bytes: int) -> None:
        self._allowed_bytes = allowed_bytes
        self._held: list[int] = []
        self.held_bytes = 0
        attribute = runtime.module.cudaDeviceAttr.cudaDevAttrConcurrentManagedAccess
        if size_bytes > allowed_bytes and not runtime.call("cudaDeviceGetAttribute", attribute, index):
            raise AutotmError(
                f"GPU {index}: its driver moves managed memory as a whole only (no concurrent managed access: Windows, "
                "WSL, some virtual GPUs): take Linux, or leave out managed-memory"
            )
        super().__init__(runtime, index, size_bytes)

    def _taken(self, size_bytes: int) -> int:
        return int(self._runtime.call("cudaMallocManaged", size_bytes, self._runtime.module.cudaMemAttachGlobal))

    def hold_the_rest(self) -> None:
        """Take all device memory but what is allowed, and keep it until the pool is closed; nothing if the pool fits.

        What the driver needs later for itself it gets by moving pages of the pool out. For after the kernels are
        loaded, which takes device memory too, and before the pool is first touched.

        Raises:
            AutotmError: less is free than is allowed, or the rest, but for 1 % of that, is not to be had.
        """
        if self.size_bytes <= self._allowed_bytes:
            return
        size_bytes = _AT_ONCE
        free_bytes = self._free_bytes()
        if free_bytes < self._allowed_bytes - _GRANULE:
            raise AutotmError(
                f"GPU {self._index}: {self._allowed_bytes / 1e9:.3f} GB are asked for, {free_bytes / 1e9:.3f} GB are "
                "free: ask for a smaller limit, or end what else uses it (nvidia-smi)"
            )
        while (over_bytes := self._free_bytes() - self._allowed_bytes) >= _GRANULE:
            size_bytes = min(size_bytes, over_bytes)
            try:
                self._held.append(int(self._runtime.call("cudaMalloc", size_bytes)))
            except CudaError as error:
                size_bytes //= 2
                if size_bytes < _GRANULE and over_bytes <= _SPARE * self._allowed_bytes:
                    break
                if size_bytes < _GRANULE:
                    raise AutotmError(
                        f"GPU {self._index}: {over_bytes / 1e9:.3f} GB beyond the limit could not be held ({error}): "
                        "managed memory would have them too; end what else uses it (nvidia-smi)"
                    ) from None
            else:
                self.held_bytes += size_bytes
        log.info(
            "managed memory: a pool of %.3f GB, %.3f GB of device memory free for it; %.3f GB are held",
            *(size / 1e9 for size in (self.size_bytes, self._free_bytes(), self.held_bytes)),
        )

    def close(self) -> None:
        """Give the pool back, and what was held."""
        super().close()
        while self._held:
            self._runtime.call("cudaFree", self._held.pop())
        self.held_bytes = 0

    def _free_bytes(self) -> int:
        return int(self._runtime.call("cudaMemGetInfo")[0])
