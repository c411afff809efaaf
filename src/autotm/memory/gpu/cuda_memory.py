"""CUDA's memory: calls of its runtime; device, managed and pinned memory."""

from __future__ import annotations

import importlib
import logging
import math
import resource
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES

log = logging.getLogger(__name__)

# Calls of the CUDA runtime: what they return, or an error that says what was asked and what to do.

_REMEDIES = {
    "cudaErrorInsufficientDriver": "no NVIDIA driver, or one older than CUDA 13 needs (580): install or update it",
    "cudaErrorNoDevice": "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorInvalidDevice": "there is no such GPU: correct device_index in the machine file",
    "cudaErrorDevicesUnavailable": "another process has the GPU for itself (nvidia-smi -q -d COMPUTE): end it, or wait",
    "cudaErrorSystemDriverMismatch": "the driver was updated while it ran: restart the computer",
}
"""Remedies by CUDA's name of an error."""


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
        """Call a function, and return what it gives: None, one value, or a tuple.

        Raises:
            CudaError: it failed.
        """
        error, *values = getattr(self.module, function)(*arguments)
        if error != self.module.cudaError_t.cudaSuccess:
            name = str(getattr(error, "name", error))
            _, text = self.module.cudaGetErrorString(error)
            remedy = f": {_REMEDIES[name]}" if name in _REMEDIES else ""
            raise CudaError(f"CUDA: {function}: {text.decode()} ({name}){remedy}", name)
        return values[0] if len(values) == 1 else tuple(values) or None


def text_of(value: bytes | str) -> str:
    """Return the text that C wrote into a buffer: it ends with a zero byte, behind which the bindings add blanks."""
    return (value.decode() if isinstance(value, bytes) else value).partition("\0")[0]


def load_runtime() -> Runtime:
    """Load NVIDIA's bindings of the CUDA runtime.

    Raises:
        AutotmError: they are not installed.
    """
    try:
        return Runtime(importlib.import_module("cuda.bindings.runtime"))
    except ImportError as error:
        raise AutotmError(
            f"slow memory of kind cuda needs NVIDIA's bindings ({error}): pip install 'autotm[cuda]'"
        ) from None


# The pools of a GPU: its own memory, or memory that its driver moves by page faults, and pinned memory of its host.

_NO_MEMORY = "cudaErrorMemoryAllocation"
_GRANULE = 2 << 20
"""Bytes: the driver moves managed memory in blocks of 2 MiB, and less than one is not worth holding."""
_AT_ONCE = 1 << 30
_SPARE = 0.01
"""Of what is allowed: so much more may be left to the driver where it is free, but not to be had."""


class DeviceMemoryError(AutotmError):
    """A device has less memory than is asked for."""


class DeviceMemory:
    """A pool: one allocation, made when its device is opened, given back when that is closed.

    Attributes:
        name: `device` or `host`.
        size_bytes: of the pool.
        address: of its first byte, as the device sees it.
    """

    def __init__(self, runtime: Runtime, name: str, size_bytes: int, address: int) -> None:
        self.name, self.size_bytes, self.address = name, size_bytes, address
        self._runtime = runtime

    def check(self, start: int, size_bytes: int) -> None:
        """Refuse bytes that leave the pool.

        Raises:
            AutotmError: they do.
        """
        if start < 0 or start + size_bytes > self.size_bytes:
            raise AutotmError(
                f"{self.name} pool: bytes [{start}, {start + size_bytes}) leave its {self.size_bytes} bytes"
            )


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, start + size_bytes) of a pool."""

    memory: DeviceMemory
    start: int
    size_bytes: int

    @property
    def address(self) -> int:
        """Address of the first byte, as the device sees it."""
        return self.memory.address + self.start


class CudaMemory(DeviceMemory):
    """Memory of the current GPU, or managed memory, whose preferred places and prefetches are left to the driver.

    Args:
        runtime: NVIDIA's bindings.
        index: CUDA's number of the GPU, which is the current one.
        size_bytes: of the pool.
        allowed_bytes: makes the pool managed memory (`cudaMallocManaged`), which may have so much device memory at a
            time once `hold_the_rest` was called.

    Raises:
        DeviceMemoryError: the GPU does not give the memory.
        AutotmError: the GPU cannot hold less of a managed pool than all of it.
    """

    def __init__(self, runtime: Runtime, index: int, size_bytes: int, allowed_bytes: int | None = None) -> None:
        self._index, self._allowed_bytes = index, allowed_bytes
        self._held: list[int] = []
        module = runtime.module
        attribute = module.cudaDeviceAttr.cudaDevAttrConcurrentManagedAccess
        is_beyond = allowed_bytes is not None and size_bytes > allowed_bytes
        if is_beyond and not runtime.call("cudaDeviceGetAttribute", attribute, index):
            raise AutotmError(
                f"GPU {index}: its driver moves managed memory as a whole only (no concurrent managed access: Windows, "
                "WSL, some virtual GPUs): take Linux, or leave out managed-memory"
            )
        calls = ("cudaMalloc",) if allowed_bytes is None else ("cudaMallocManaged", module.cudaMemAttachGlobal)
        try:
            address = int(runtime.call(calls[0], max(size_bytes, 1), *calls[1:]))
        except CudaError as error:
            if error.name != _NO_MEMORY:
                raise
            free_bytes, total_bytes = runtime.call("cudaMemGetInfo")
            raise DeviceMemoryError(
                f"GPU {index}: {size_bytes / 1e9:.3f} GB are not to be had in one piece; {free_bytes / 1e9:.3f} of its "
                f"{total_bytes / 1e9:.3f} GB are free: ask for a smaller limit or batch, or end what else uses it "
                "(nvidia-smi)"
            ) from None
        super().__init__(runtime, "device", size_bytes, address)

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
        """Return the address of the array that begins at `offset`.

        Raises:
            AutotmError: the offset is not a multiple of 64, or the array leaves the pool.
        """
        self.check(offset, math.prod(shape) * np.dtype(dtype).itemsize)
        if offset % ALIGNMENT_BYTES:
            raise AutotmError(f"{self.name} pool: offset {offset} is not a multiple of {ALIGNMENT_BYTES} bytes")
        return self.address + offset

    def hold_the_rest(self) -> None:
        """Take all device memory but what is allowed, and keep it until the pool is closed; nothing if the pool fits.

        What the driver needs later for itself it gets by moving pages of the pool out. For after the kernels are
        loaded, which takes device memory too, and before the pool is first touched.

        Raises:
            AutotmError: less is free than is allowed, or the rest, but for 1 % of that, is not to be had.
        """
        allowed_bytes = self._allowed_bytes
        if allowed_bytes is None or self.size_bytes <= allowed_bytes:
            return
        size_bytes, held_bytes, free_bytes = _AT_ONCE, 0, self._free_bytes()
        if free_bytes < allowed_bytes - _GRANULE:
            raise AutotmError(
                f"GPU {self._index}: {allowed_bytes / 1e9:.3f} GB are asked for, {free_bytes / 1e9:.3f} GB are "
                "free: ask for a smaller limit, or end what else uses it (nvidia-smi)"
            )
        while (over_bytes := self._free_bytes() - allowed_bytes) >= _GRANULE:
            size_bytes = min(size_bytes, over_bytes)
            try:
                self._held.append(int(self._runtime.call("cudaMalloc", size_bytes)))
            except CudaError as error:
                size_bytes //= 2
                if size_bytes < _GRANULE and over_bytes <= _SPARE * allowed_bytes:
                    break
                if size_bytes < _GRANULE:
                    raise AutotmError(
                        f"GPU {self._index}: {over_bytes / 1e9:.3f} GB beyond the limit could not be held ({error}): "
                        "managed memory would have them too; end what else uses it (nvidia-smi)"
                    ) from None
            else:
                held_bytes += size_bytes
        log.info(
            "managed memory: a pool of %.3f GB, %.3f GB of device memory free for it; %.3f GB are held",
            *(size / 1e9 for size in (self.size_bytes, self._free_bytes(), held_bytes)),
        )

    def close(self) -> None:
        """Give the memory back, and what was held."""
        for address in (self.address, *self._held):
            self._runtime.call("cudaFree", address)  # Of 0 it does nothing.
        self.address, self.size_bytes, self._held = 0, 0, []

    def _free_bytes(self) -> int:
        return int(self._runtime.call("cudaMemGetInfo")[0])


class PinnedMemory(DeviceMemory):
    """Page-locked memory of the host: copies to and from it run beside everything else.

    Raises:
        AutotmError: the system does not let so much memory be pinned.
    """

    def __init__(self, runtime: Runtime, size_bytes: int) -> None:
        available = psutil.virtual_memory().available
        if size_bytes > available:  # To pin more would have the system end other processes.
            raise _refused(size_bytes, f"{available / 1e9:.3f} GB of the host's memory are free")
        try:
            address = int(runtime.call("cudaHostAlloc", max(size_bytes, 1), runtime.module.cudaHostAllocDefault))
        except CudaError as error:
            raise _refused(size_bytes, str(error)) from None
        super().__init__(runtime, "host", size_bytes, address)

    def close(self) -> None:
        """Give the memory back."""
        self._runtime.call("cudaFreeHost", self.address)
        self.address = self.size_bytes = 0


def _refused(size_bytes: int, reason: str) -> AutotmError:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    locked = "no limit" if limit == resource.RLIM_INFINITY else f"{limit / 1e9:.3f} GB"
    return AutotmError(
        f"pinned memory: {size_bytes / 1e9:.3f} GB refused ({reason}; limit on locked memory: {locked}): raise it with "
        "ulimit -l unlimited, of a container with --ulimit memlock=-1, or ask for a larger limit of device memory, so "
        "that less is moved out"
    )
