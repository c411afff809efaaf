"""One contiguous piece of memory that a program's tensors are laid out in."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from autotm.model.files import AutotmError
from autotm.model.step import ALIGNMENT_BYTES, Tier

POISON_BYTE = 0xFF
"""Four of them are a quiet NaN in float32 and -1 in int32: what reads freed memory shows in the losses."""


class Pool:
    """`size_bytes` of anonymous memory, page aligned, every page touched before the constructor returns.

    Args:
        tier: the memory that the pool plays.
        size_bytes: may be 0; then only views without elements exist.
        huge_pages: ask for transparent huge pages, which spare random accesses most of their TLB misses.
    """

    def __init__(self, tier: Tier, size_bytes: int, *, huge_pages: bool = True) -> None:
        if size_bytes < 0:
            raise AutotmError(f"{tier} pool: {size_bytes} bytes is negative")
        self.tier = tier
        self.size_bytes = size_bytes
        mapping = _map(tier, max(size_bytes, mmap.PAGESIZE))
        if huge_pages:
            # A kernel built without huge pages refuses the advice; the pool works all the same.
            with contextlib.suppress(OSError, AttributeError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        # Every view leads to this array and so to the mapping, which is freed with the last of them. The mapping is
        # never closed by hand: NumPy does not tell it of its views, and they would point nowhere.
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8, count=size_bytes)
        # Fresh memory is handed out page by page at first touch, far below copy speed: have it done before timing.
        self._bytes[:: mmap.PAGESIZE] = 0

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The array that starts `offset` bytes into the pool: no copy, C order, 64-byte aligned.

        Raises:
            AutotmError: the offset is not a multiple of 64, or the array leaves the pool.
        """
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        self._check(offset, size_bytes)
        if offset % ALIGNMENT_BYTES:
            raise AutotmError(f"{self.tier} pool: offset {offset} is not a multiple of {ALIGNMENT_BYTES} bytes")
        return self._bytes[offset : offset + size_bytes].view(dtype).reshape(shape)

    def poison(self, offset: int, size_bytes: int) -> None:
        """Overwrite freed bytes [offset, offset + size_bytes) so that a later read of them cannot go unseen.

        Raises:
            AutotmError: the bytes leave the pool.
        """
        self._check(offset, size_bytes)
        self._bytes[offset : offset + size_bytes] = POISON_BYTE

    def close(self) -> None:
        """Give the memory back; where views are still alive, it goes with the last of them. The pool is empty then."""
        self._bytes = np.empty(0, dtype=np.uint8)
        self.size_bytes = 0

    def _check(self, offset: int, size_bytes: int) -> None:
        if offset < 0 or offset + size_bytes > self.size_bytes:
            raise AutotmError(
                f"{self.tier} pool: bytes [{offset}, {offset + size_bytes}) leave its {self.size_bytes} bytes"
            )


def _map(tier: Tier, size_bytes: int) -> mmap.mmap:
    available = psutil.virtual_memory().available
    if size_bytes > available:
        raise _too_large(tier, size_bytes, f"{available / 1e9:.3f} GB are free")
    try:
        return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise _too_large(tier, size_bytes, str(error)) from None


def _too_large(tier: Tier, size_bytes: int, reason: str) -> AutotmError:
    return AutotmError(
        f"{tier} pool: this machine cannot give {size_bytes / 1e9:.3f} GB ({reason}); take a smaller scale or batch"
    )
