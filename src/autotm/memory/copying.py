"""Copies between pools at the bandwidth of all threads: one `memcpy` cannot saturate memory."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.model.errors import AutotmError

PARALLEL_BYTES = 2 << 20
"""Smaller copies stay on the calling thread: waking the others would take longer than they save."""

_CHUNK_ALIGNMENT_BYTES = 4096


class CopyEngine:
    """A team of one thread per core of `cpus`, the calling thread among them.

    The helpers pin themselves: created after the kernel threads, they would otherwise inherit the single core that
    their creator is pinned to, and all copy on that one.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self._helpers = len(cpus) - 1
        self._executor: ThreadPoolExecutor | None = None
        if self._helpers:
            pin = _Pin(cpus[1:])
            self._executor = ThreadPoolExecutor(self._helpers, thread_name_prefix="autotm-copy", initializer=pin)

    def copy(self, destination: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
        """Copy all bytes of `source` over `destination`; both contiguous, equally large, not overlapping.

        Raises:
            AutotmError: the sizes differ, or an array is not contiguous.
        """
        to, out_of = _flat_bytes(destination), _flat_bytes(source)
        if to.size != out_of.size:
            raise AutotmError(f"copy: the destination holds {to.size} bytes, the source {out_of.size}")
        if self._executor is None or to.size < PARALLEL_BYTES:
            np.copyto(to, out_of)
            return
        share = -(-to.size // (self._helpers + 1))
        share = -(-share // _CHUNK_ALIGNMENT_BYTES) * _CHUNK_ALIGNMENT_BYTES
        pending: list[Future[None]] = [
            self._executor.submit(np.copyto, to[start : start + share], out_of[start : start + share])
            for start in range(share, to.size, share)
        ]
        np.copyto(to[:share], out_of[:share])
        for future in pending:
            future.result()

    def close(self) -> None:
        """End the helper threads."""
        if self._executor is not None:
            self._executor.shutdown()


class _Pin:
    """Run at the start of each helper thread: puts the i-th one on the i-th core."""

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self._free = list(cpus)
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            cpu = self._free.pop()
        os.sched_setaffinity(0, {cpu})


def _flat_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if not array.flags.c_contiguous:
        raise AutotmError(f"copy: an array of shape {array.shape} is not contiguous")
    return array.reshape(-1).view(np.uint8)
