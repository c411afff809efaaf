"""One contiguous piece of memory that a program's tensors are laid out in."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES, Tier

POISON_BYTE = 0xFF
"""Four of them are a quiet NaN in float32 and -1 in int32: what reads freed memory shows in the losses."""


def require_available(size_bytes: int) -> None:
    """Refuse pools that together are larger than the memory that is free, before any of it is touched.

    Raises:
        AutotmError: they are.
    """
    available = psutil.virtual_memory().available
    if size_bytes > available:
        raise AutotmError(
            f"pools of {size_bytes / 1e9:.3f} GB together: this machine cannot give as much ({available / 1e9:.3f} GB "
            "are free); take a smaller scale or batch"
        )


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
        mapping = self._mapped(max(size_bytes, mmap.PAGESIZE))
        if huge_pages:
            # A kernel built without huge pages refuses the advice; the pool works all the same.
            with contextlib.suppress(OSError, AttributeError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        # Every view leads to this array and so to the mapping, which is freed with the last of them. The mapping is
        # never closed by hand: NumPy does not tell it of its views, and they would point nowhere.
        self._whole: npt.NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)
        self._bytes = self._whole[:size_bytes]
        # Fresh memory is handed out page by page at first touch, far below copy speed: have it done before timing.
        self._touch()

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        """Return untouched memory of at least that size."""
        self._require_available(size_bytes)
        try:
            return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise self._too_large(size_bytes, str(error)) from None

    def _require_available(self, size_bytes: int) -> None:
        available = psutil.virtual_memory().available
        if size_bytes > available:
            raise self._too_large(size_bytes, f"{available / 1e9:.3f} GB are free")

    def _touch(self) -> None:
        """Have every page handed out."""
        self._whole[:: mmap.PAGESIZE] = 0

    def check(self) -> None:
        """Make sure that the pool is still in the memory that it was made in; what cannot move always is.

        Raises:
            AutotmError: it is not, so that what was measured since tells nothing.
        """

    def keep(self) -> None:
        """Have every page stay in its memory while Linux moves others; what is bound to no node stays by itself.

        Raises:
            AutotmError: the system does not let this process lock memory.
        """

    def pages_by_node(self) -> dict[str, int]:
        """Return how many pages are on which memory node now; empty where they are bound to none."""
        return {}

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the array that starts `offset` bytes into the pool: no copy, C order, 64-byte aligned.

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
        self._bytes = self._whole = np.empty(0, dtype=np.uint8)
        self.size_bytes = 0

    def _check(self, offset: int, size_bytes: int) -> None:
        if offset < 0 or offset + size_bytes > self.size_bytes:
            raise AutotmError(
                f"{self.tier} pool: bytes [{offset}, {offset + size_bytes}) leave its {self.size_bytes} bytes"
            )

    def _too_large(self, size_bytes: int, reason: str) -> AutotmError:
        return AutotmError(
            f"{self.tier} pool: this machine cannot give {size_bytes / 1e9:.3f} GB ({reason}); "
            "take a smaller scale or batch"
        )
