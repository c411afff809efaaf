"""Copies between pools at the bandwidth of all threads: one cannot saturate memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from autotm.memory.native import Team, Way, copy_bytes, usual_ways
from autotm.model.files import AutotmError


class CopyEngine:
    """A team of one thread per core of `cpus`: the calling thread, which belongs on the first, and helpers.

    Helpers are held on the other cores. Created after the kernel threads, they would else inherit the one core that
    their creator is held on, and all copy there.

    Raises:
        AutotmError: no thread can run on one of the cores.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self._team = Team(cpus[1:]) if len(cpus) > 1 else None
        self._usual = usual_ways(len(cpus))

    def copy(self, destination: npt.NDArray[Any], source: npt.NDArray[Any], way: Way | None = None) -> None:
        """Copy all bytes of `source` over `destination`; both contiguous, equally large, not overlapping.

        `way` says how; by default as caches suggest.

        Raises:
            AutotmError: an array is not so, or the destination cannot be written.
        """
        to, out_of, size_bytes = ends("copy", destination, source)
        way = way or self._usual.way(size_bytes)
        if self._team is None or way.threads == 1:
            copy_bytes(to, out_of, size_bytes, way.stores)
        else:
            self._team.copy(to, out_of, size_bytes, way.stores, way.threads)

    def close(self) -> None:
        """End the helper threads."""
        if self._team is not None:
            self._team.close()


@contextmanager
def caller_on(cpu: int) -> Iterator[None]:
    """Hold the calling thread on the core that it has in a running program, beside the copying threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ends(what: str, destination: npt.NDArray[Any], source: npt.NDArray[Any]) -> tuple[int, int, int]:
    """Addresses of a copy's destination and source, and its bytes.

    Raises:
        AutotmError: the sizes differ, the two overlap, an array is not contiguous, or the destination is read-only;
            begins with `what`.
    """
    for array in (destination, source):
        if not array.flags.c_contiguous:
            raise AutotmError(f"{what}: an array of shape {array.shape} is not contiguous")
    if not destination.flags.writeable:
        raise AutotmError(f"{what}: the destination, of shape {destination.shape}, is read-only")
    size_bytes = source.nbytes
    if destination.nbytes != size_bytes:
        raise AutotmError(f"{what}: the destination holds {destination.nbytes} bytes, the source {size_bytes}")
    to, out_of = _address(destination), _address(source)
    if abs(to - out_of) < size_bytes:
        raise AutotmError(f"{what}: destination and source overlap: {size_bytes} bytes, {abs(to - out_of)} apart")
    return to, out_of, size_bytes


def _address(array: npt.NDArray[Any]) -> int:
    # A quarter of the time of `array.ctypes.data`, which is for what ctypes refuses.
    if array.nbytes and array.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.ctypes.data)
