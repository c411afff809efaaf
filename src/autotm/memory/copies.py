"""Copies between pools: by all threads while a step waits, or beside kernels by one thread per direction."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import numpy.typing as npt

from autotm.memory.native.library import PLAIN, Stores, Team, copy_bytes
from autotm.memory.native.ways import CopyMethod, usual_ways
from autotm.model.errors import AutotmError

# Copies between pools at the bandwidth of all threads: one cannot saturate memory.


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

    def copy(self, destination: npt.NDArray[Any], source: npt.NDArray[Any], way: CopyMethod | None = None) -> None:
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


# Copies beside kernels: an engine of one thread per direction, in chunks, the most urgent copy first.

CHUNK_BYTES = 256 << 10
"""Small enough to take tens of microseconds from a kernel thread's core, large enough to copy at full bandwidth."""


class AsyncCopy:
    """One prepared copy: `start` returns at once, `wait` when the bytes are there. It may fly many times.

    Kernels may run in between; whoever starts it keeps them from the bytes of both ends.

    Attributes:
        deadline: its place among the copies under way.
        started_ns, begun_ns, ended_ns: `perf_counter_ns` when it was last handed over, begun and complete.
        error: what the engine's thread failed with.
    """

    def __init__(
        self,
        engine: AsyncCopyEngine,
        destination: npt.NDArray[Any],
        source: npt.NDArray[Any],
        deadline: int,
        stores: Stores = PLAIN,
    ) -> None:
        self.deadline = deadline
        self.started_ns = self.begun_ns = self.ended_ns = 0
        self.error: BaseException | None = None
        self._engine = engine
        self._held = destination, source
        self._to, self._out_of, self._size_bytes = ends("asynchronous move", destination, source)
        self._stores = stores
        self._copied_bytes = 0
        self._done = threading.Event()
        self._done.set()

    def start(self) -> None:
        """Hand the copy to the engine.

        Raises:
            AutotmError: it is under way.
        """
        if not self._done.is_set():
            raise AutotmError("asynchronous move: started again while it is under way")
        self.error, self._copied_bytes = None, 0
        self._done.clear()
        self.started_ns = perf_counter_ns()
        self._engine.submit(self)

    def wait(self) -> None:
        """Return when the copy is complete.

        Raises:
            AutotmError: the engine's thread failed.
        """
        self._done.wait()
        if self.error is not None:
            raise AutotmError(f"asynchronous move: the copying thread failed: {self.error}") from self.error

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._done.is_set()

    def copy_chunk(self) -> int:
        """Copy the next chunk and return its bytes; for the engine's thread."""
        start = self._copied_bytes
        if not start:
            self.begun_ns = perf_counter_ns()
        size_bytes = min(CHUNK_BYTES, self._size_bytes - start)
        copy_bytes(self._to + start, self._out_of + start, size_bytes, self._stores)
        self._copied_bytes += size_bytes
        return size_bytes

    @property
    def is_copied(self) -> bool:
        """Whether no chunk is left."""
        return self._copied_bytes == self._size_bytes

    def end(self, error: BaseException | None = None) -> None:
        """Let `wait` return, or raise because of `error`; for the engine's thread."""
        self.error = error
        self.ended_ns = perf_counter_ns()
        self._done.set()


class AsyncCopyEngine:
    """A thread that copies beside kernels, in one direction.

    Of the copies under way it always serves the one with the earliest deadline, chunk by chunk: if any order of chunks
    completes all of them in time, this one does (Liu and Layland, JACM 20, 1973, for one processor and preemption).

    Args:
        name: of the thread.
        cpus: cores that the thread may use; it would else inherit the one core that its creator is held on.
        chunk_ns: nanoseconds that a chunk of so many bytes takes at least; 0 where memory really is as slow.
    """

    def __init__(self, name: str, cpus: Sequence[int], chunk_ns: Callable[[int], int]) -> None:
        self._cpus = frozenset(cpus)
        self._chunk_ns = chunk_ns
        self._queue: list[tuple[int, int, AsyncCopy]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def prepare(
        self, destination: npt.NDArray[Any], source: npt.NDArray[Any], deadline: int, stores: Stores = PLAIN
    ) -> AsyncCopy:
        """A copy of all bytes of `source` over `destination`, to be complete before those with a later deadline.

        Raises:
            AutotmError: the sizes differ, the two overlap, an array is not contiguous, or the destination is read-only.
        """
        return AsyncCopy(self, destination, source, deadline, stores)

    def submit(self, async_copy: AsyncCopy) -> None:
        """Queue a copy; it holds one place at most, so the queue never outgrows what was prepared."""
        with self._changed:
            heapq.heappush(self._queue, (async_copy.deadline, next(self._numbers), async_copy))
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the chunk it is copying; copies under way stay incomplete."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        os.sched_setaffinity(0, self._cpus)
        paced_ns = 0
        while (async_copy := self._most_urgent()) is not None:
            # A chunk follows on the last one's deadline, not on its end: waking up late does not add up.
            paced_ns = max(paced_ns, async_copy.started_ns)
            try:
                paced_ns += self._chunk_ns(async_copy.copy_chunk())
            except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for the copy
                self._end(async_copy, error)
                continue
            _sleep_until(paced_ns)
            if async_copy.is_copied:
                self._end(async_copy, None)

    def _most_urgent(self) -> AsyncCopy | None:
        """The first of the queue, which stays in it; None when the engine is closed."""
        with self._changed:
            while not self._queue and not self._is_closed:
                self._changed.wait()
            return None if self._is_closed else self._queue[0][2]

    def _end(self, async_copy: AsyncCopy, error: BaseException | None) -> None:
        with self._changed:
            self._queue = [entry for entry in self._queue if entry[2] is not async_copy]
            heapq.heapify(self._queue)
        async_copy.end(error)


def _sleep_until(deadline_ns: int) -> None:
    """Leave the core to others until then, unless it has passed."""
    left_ns = deadline_ns - perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
