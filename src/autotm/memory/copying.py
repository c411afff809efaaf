"""Copies between pools at the bandwidth of all threads: one `memcpy` cannot saturate memory."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.model.files import AutotmError

PARALLEL_BYTES = 2 << 20
"""Smaller copies stay on the calling thread: waking the others would take longer than they save."""

_CHUNK_BYTES = 1 << 20
"""Threads take chunks as they get done: one that another process displaces delays the copy by one chunk only."""


class CopyEngine:
    """A team of one thread per core of `cpus`: the calling thread, which belongs on the first, and helpers.

    Helpers pin themselves to the other cores. Created after the kernel threads, they would else inherit the one core
    that their creator is pinned to, and all copy there.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self._helpers = len(cpus) - 1
        self._executor: ThreadPoolExecutor | None = None
        if self._helpers:
            free: queue.SimpleQueue[int] = queue.SimpleQueue()
            for cpu in cpus[1:]:
                free.put(cpu)
            self._executor = ThreadPoolExecutor(
                self._helpers, "autotm-copy", initializer=lambda: os.sched_setaffinity(0, {free.get()})
            )

    def copy(self, destination: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
        """Copy all bytes of `source` over `destination`; both contiguous, equally large, not overlapping.

        Raises:
            AutotmError: the sizes differ, or an array is not contiguous.
        """
        to, out_of = flat_bytes(destination), flat_bytes(source)
        if to.size != out_of.size:
            raise AutotmError(f"copy: the destination holds {to.size} bytes, the source {out_of.size}")
        if self._executor is None or to.size < PARALLEL_BYTES:
            np.copyto(to, out_of)
            return
        chunks = iter(range(0, to.size, _CHUNK_BYTES))
        helping = [self._executor.submit(_copy_chunks, to, out_of, chunks) for _ in range(self._helpers)]
        _copy_chunks(to, out_of, chunks)
        for helper in helping:
            helper.result()

    def close(self) -> None:
        """End the helper threads."""
        if self._executor is not None:
            self._executor.shutdown()


@contextmanager
def caller_on(cpu: int) -> Iterator[None]:
    """Hold the calling thread on the core that it has in a running program, beside the copying threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _copy_chunks(to: npt.NDArray[np.uint8], out_of: npt.NDArray[np.uint8], starts: Iterator[int]) -> None:
    """Copy chunks until none is left; `starts` is shared between threads, `next` of a range is atomic."""
    for start in starts:
        np.copyto(to[start : start + _CHUNK_BYTES], out_of[start : start + _CHUNK_BYTES])


def flat_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of an array, in order.

    Raises:
        AutotmError: it is not contiguous.
    """
    if not array.flags.c_contiguous:
        raise AutotmError(f"copy: an array of shape {array.shape} is not contiguous")
    return array.reshape(-1).view(np.uint8)
