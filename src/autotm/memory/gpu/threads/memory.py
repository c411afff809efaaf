"""Pools of a device of threads: ordinary memory, in which a byte that nobody wrote is a poisoned one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.interface import Span
from autotm.memory.pool import Pool
from autotm.model.files import AutotmError
from autotm.model.step import Tier


class ThreadMemory:
    """As `interface.DeviceMemory`: ordinary memory; its views are NumPy arrays."""

    def __init__(self, name: str, tier: Tier, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._pool = Pool(tier, size_bytes)
        self._pool.poison(0, size_bytes)
        self._bytes: npt.NDArray[np.uint8] = self._pool.view(0, (size_bytes,), "uint8")
        self.address = int(self._bytes.ctypes.data)

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The array at `offset`."""
        return self._pool.view(offset, shape, dtype)

    def poison(self, span: Span) -> None:
        """Make what is there NaN."""
        self._pool.poison(span.start, span.size_bytes)

    def bytes_of(self, span: Span) -> npt.NDArray[np.uint8]:
        """The bytes of a span of this pool.

        Raises:
            AutotmError: it leaves the pool.
        """
        if span.start < 0 or span.stop > self.size_bytes:
            raise AutotmError(f"{self.name} pool: bytes [{span.start}, {span.stop}) leave its {self.size_bytes} bytes")
        return self._bytes[span.start : span.stop]

    def close(self) -> None:
        """Give the memory back; where views are still alive, with the last of them."""
        self._bytes = np.empty(0, np.uint8)
        self._pool.close()


def bytes_of(span: Span) -> npt.NDArray[np.uint8]:
    """The bytes of a span of a device of threads.

    Raises:
        AutotmError: it leaves its pool.
    """
    assert isinstance(span.memory, ThreadMemory)
    return span.memory.bytes_of(span)
