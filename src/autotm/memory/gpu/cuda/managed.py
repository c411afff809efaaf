"""Memory that the GPU's driver moves by page faults, with no more device memory than it is allowed."""

from __future__ import annotations

import logging

from autotm.memory.gpu.cuda.memory import CudaMemory
from autotm.memory.gpu.cuda.runtime import CudaError, Runtime
from autotm.model.files import AutotmError

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
