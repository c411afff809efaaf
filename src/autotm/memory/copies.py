"""Copies between pools: by all threads while a step waits, or beside kernels by one thread per direction.

`copy.c` holds the machine code: plain and streaming stores, and a team of threads without the interpreter.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import hashlib
import heapq
import itertools
import math
import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy.typing as npt

from autotm.model.errors import AutotmError
from autotm.model.files import cache_folder, write_atomically
from autotm.model.graph import Tier
from autotm.model.links import CopyCurve
from autotm.model.system import find_compiler

# C sources -> shared libraries, compiled once on each computer and kept in the user's cache folder.

_OPTIONS = ("-x", "c", "-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread")
"""No processor is named: what depends on it is chosen when it runs, because computers may share the folder."""


def compiled(source: Path, options: Sequence[str] = _OPTIONS, libraries: Sequence[str] = ()) -> ctypes.CDLL:
    """Return the library that `source` makes, loaded; calls of its functions let go of the interpreter.

    A bundle has it compiled beside the source. Elsewhere it is kept under a hash of all that it depends on, in
    $XDG_CACHE_HOME/autotm or ~/.cache/autotm; where that cannot be written, it is compiled again for every process.

    Args:
        source: in C, or what the options say.
        options: of the compiler.
        libraries: options of the linker.

    Raises:
        AutotmError: it has to be compiled, and there is no C compiler, or the compiler fails.
    """
    if (shipped := source.with_suffix(".so")).exists():
        return ctypes.CDLL(str(shipped))
    text = source.read_bytes()
    facts = f"{options}{libraries}{platform.machine()}{platform.libc_ver()}".encode()
    name = f"{source.stem}-{hashlib.sha256(text + facts).hexdigest()[:16]}.so"
    cached = cache_folder() / name
    with suppress(OSError):  # It is not there yet, or was damaged.
        return ctypes.CDLL(str(cached))
    try:
        write_atomically(cached, lambda path: compile_library(source, path, options, libraries))
        return ctypes.CDLL(str(cached))
    except OSError:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            path = Path(folder) / name
            compile_library(source, path, options, libraries)
            return ctypes.CDLL(str(path))


def compile_library(source: Path, path: Path, options: Sequence[str] = _OPTIONS, libraries: Sequence[str] = ()) -> None:
    """Write the library that `source` makes.

    Raises:
        AutotmError: there is no C compiler, or it fails.
    """
    command = [find_compiler(), *options, "-o", str(path), str(source), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(
            f"compiling {source} failed. Is the C compiler whole (gcc and its headers: apt-get install g++)?\n"
            f"{done.stderr.strip()}"
        )


_USUAL_CACHE_BYTES = 1 << 20  # second-level cache where the system does not tell


@dataclass(frozen=True, slots=True)
class Stores:
    """How a thread writes what it copies.

    Attributes:
        width_bytes: of each streaming store, `widest_store()` or narrower; 0 for the C library's memcpy.
        ahead_bytes: how early streaming copies ask for lines of the source; 0 leaves that to the processor.
    """

    width_bytes: int
    ahead_bytes: int = 0


PLAIN = Stores(0)


COPY_SOURCE = Path(__file__).with_name("copy.c")
"""What the copy functions are compiled from."""


@functools.cache
def _functions() -> ctypes.CDLL:
    """Load the library and declare its signatures; not at import, as planning needs no copies and so no compiler."""
    library = compiled(COPY_SOURCE)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for name, result, arguments in (
        ("autotm_widest_store", number, ()),
        ("autotm_own_cache_bytes", ctypes.c_long, ()),
        ("autotm_copy", None, (pointer, pointer, size, number, size)),
        ("autotm_team", pointer, (ctypes.POINTER(number), number, ctypes.POINTER(number))),
        ("autotm_team_copy", None, (pointer, number, pointer, pointer, size, number, size)),
        ("autotm_team_end", None, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def widest_store() -> int:
    """Return the bytes of a streaming store: 64 with AVX-512, 32 with AVX2, 16 with SSE2; 0 where memcpy copies."""
    return int(_functions().autotm_widest_store())


@functools.cache
def streamed_bytes() -> int:
    """Return the bytes from which on a copy streams: half of a core's own (second-level) cache.

    Source and destination no longer fit into it together, so plain stores would put out what is there, and read what
    they overwrite, for data that does not stay either.
    """
    return int(_functions().autotm_own_cache_bytes() or _USUAL_CACHE_BYTES) // 2


def copy_bytes(to: int, out_of: int, size_bytes: int, stores: Stores) -> None:
    """Copy between addresses on the calling thread; the two places must not overlap."""
    _functions().autotm_copy(to, out_of, size_bytes, stores.width_bytes, stores.ahead_bytes)


# Number of threads and kind of store for a copy of each size: as measured, or from cache sizes.

_PARALLEL_BYTES = 2 << 20
"""Smaller copies stay on the calling thread, unless several are measured to be faster: waking them takes a good part of
the time of such a copy, and more when they have slept for long."""

_AS_FAST, _AS_FAST_OVERALL = 1.05, 1.01
"""Methods that take at most so many times as long as the fastest count as equally fast: medians scatter by as much,
means over sizes by less."""


@dataclass(frozen=True, slots=True)
class CopyMethod:
    """How one copy is made.

    Attributes:
        threads: how many copy together, the caller among them.
        stores: of each of them.
    """

    threads: int
    stores: Stores


@dataclass(frozen=True, slots=True)
class CopyMethods:
    """Methods of copies to one tier by size: `methods[i]` from `from_bytes[i]` on, which ascend from 0.

    `alone` are the stores of a copy by a single thread.
    """

    from_bytes: tuple[int, ...]
    methods: tuple[CopyMethod, ...]
    alone: tuple[Stores, ...]

    def method(self, size_bytes: int) -> CopyMethod:
        """Return the method of a copy that the step waits for."""
        return self.methods[bisect.bisect_right(self.from_bytes, size_bytes) - 1]

    def stores_alone(self, size_bytes: int) -> Stores:
        """Return the stores of a copy by one thread."""
        return self.alone[bisect.bisect_right(self.from_bytes, size_bytes) - 1]


def usual_methods(threads: int) -> CopyMethods:
    """Return the methods that caches suggest without measurements: streaming stores from `streamed_bytes()` on."""
    from_bytes = sorted({0, streamed_bytes(), _PARALLEL_BYTES})
    alone = tuple(Stores(widest_store()) if start >= streamed_bytes() else PLAIN for start in from_bytes)
    methods = tuple(
        CopyMethod(threads if start >= _PARALLEL_BYTES else 1, stores)
        for start, stores in zip(from_bytes, alone, strict=True)
    )
    return CopyMethods(tuple(from_bytes), methods, alone)


def measured_methods(curves: Sequence[CopyCurve], destination: Tier, threads: int) -> CopyMethods:
    """Return the fastest measured method at each size, by `threads` or fewer; between sizes, the nearer one's.

    At sizes below `streamed_bytes()` stores stay plain: such a copy stays in the caches for the kernel that reads it,
    which its own time does not show. How early streaming copies ask for lines is chosen for all sizes together, since
    it follows from the processor and the memory, and one size alone may have been disturbed. Of methods that are as
    fast, large copies take the one with most threads: their cores stand still while a step waits, and where neighbours
    leave more of the memory, several threads get more of it. Small ones, over before a thread has woken up, take that
    with fewest. Then streaming stores. Without curves to that tier, `usual_methods`.
    """
    fitting = [curve for curve in curves if curve.destination is destination and curve.threads <= threads]
    if not fitting:
        return usual_methods(threads)
    candidates = []
    for count in sorted({curve.threads for curve in fitting}):
        candidates += _with_one_prefetch([curve for curve in fitting if curve.threads == count])
    sizes = [size for size, _ in fitting[0].points]
    alone = [curve for curve in candidates if curve.threads == 1]
    halfway = (math.isqrt(one * other) for one, other in itertools.pairwise(sizes))
    return CopyMethods(
        (0, *halfway),
        tuple(_fastest(candidates, size) for size in sizes),
        tuple(_fastest(alone, size).stores for size in sizes),
    )


def _with_one_prefetch(curves: Sequence[CopyCurve]) -> list[CopyCurve]:
    """Keep, of one thread count's curves, the plain one and the streaming one that is fastest over the sizes."""

    def mean_log_ns(curve: CopyCurve) -> float:
        # Over the sizes at which copies stream, or all where none is so large.
        times_ns = [ns for size, ns in curve.points if size >= streamed_bytes()] or [ns for _, ns in curve.points]
        return statistics.fmean(math.log(max(1, ns)) for ns in times_ns)

    streaming = {curve: mean_log_ns(curve) for curve in curves if curve.streams}
    least = min(streaming.values(), default=0.0)
    as_fast = [curve for curve, mean in streaming.items() if mean <= least + math.log(_AS_FAST_OVERALL)]
    plain = [curve for curve in curves if not curve.streams]
    return plain + sorted(as_fast, key=lambda curve: curve.ahead_bytes)[:1]


def _fastest(curves: Sequence[CopyCurve], size_bytes: int) -> CopyMethod:
    is_large = size_bytes >= streamed_bytes()
    allowed = [curve for curve in curves if is_large or not curve.streams]
    times_ns = [dict(curve.points)[size_bytes] for curve in allowed]
    as_fast = [curve for curve, ns in zip(allowed, times_ns, strict=True) if ns <= _AS_FAST * min(times_ns)]
    first = min(
        as_fast,
        key=lambda curve: (-curve.threads if size_bytes >= _PARALLEL_BYTES else curve.threads, not curve.streams),
    )
    return CopyMethod(first.threads, Stores(widest_store(), first.ahead_bytes) if first.streams else PLAIN)


# Copies between pools at the bandwidth of all threads: one cannot saturate memory.


class CopyEngine:
    """A team of one thread per core of `cpus`: the calling thread, which belongs on the first, and helpers.

    Helpers are held on the other cores. Created after the kernel threads, they would else inherit the one core that
    their creator is held on, and all copy there. They sleep between copies, so kernels have the cores for themselves.

    Raises:
        AutotmError: no thread can run on one of the cores.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        helpers, error = cpus[1:], ctypes.c_int(0)
        cores = (ctypes.c_int * len(helpers))(*helpers)
        self._team = _functions().autotm_team(cores, len(helpers), ctypes.byref(error))
        if not self._team:
            raise AutotmError(
                f"copy: no threads on cores {list(helpers)}: {os.strerror(error.value)}; this process may use "
                f"{sorted(os.sched_getaffinity(0))}: change cpus in the machine file"
            )
        self._end = weakref.finalize(self, _functions().autotm_team_end, self._team)
        self._usual = usual_methods(len(cpus))

    def copy(self, destination: npt.NDArray[Any], source: npt.NDArray[Any], method: CopyMethod | None = None) -> None:
        """Copy all bytes of `source` over `destination`; both contiguous, equally large, not overlapping.

        By default the method is the one that caches suggest. Callers on several threads take turns.

        Raises:
            AutotmError: an array is not so, or the destination cannot be written.
        """
        to, out_of, size_bytes = ends("copy", destination, source)
        self.copy_addresses(to, out_of, size_bytes, method or self._usual.method(size_bytes))

    def copy_addresses(self, to: int, out_of: int, size_bytes: int, method: CopyMethod) -> None:
        """Copy bytes from one address to another; the caller has checked both (`ends`)."""
        if method.threads == 1:
            copy_bytes(to, out_of, size_bytes, method.stores)
        else:
            stores = method.stores
            _functions().autotm_team_copy(
                self._team, method.threads - 1, to, out_of, size_bytes, stores.width_bytes, stores.ahead_bytes
            )

    def close(self) -> None:
        """End the helper threads; the engine copies no more."""
        self._end()


@contextmanager
def caller_on(cpu: int) -> Iterator[None]:
    """Hold the calling thread on the core that it has in a running program, beside the copying threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ends(label: str, destination: npt.NDArray[Any], source: npt.NDArray[Any]) -> tuple[int, int, int]:
    """Return the addresses of a copy's destination and source, and its bytes.

    Raises:
        AutotmError: the sizes differ, the two overlap, an array is not contiguous, or the destination is read-only;
            begins with `label`.
    """
    for array in (destination, source):
        if not array.flags.c_contiguous:
            raise AutotmError(f"{label}: an array of shape {array.shape} is not contiguous")
    if not destination.flags.writeable:
        raise AutotmError(f"{label}: the destination, of shape {destination.shape}, is read-only")
    size_bytes = source.nbytes
    if destination.nbytes != size_bytes:
        raise AutotmError(f"{label}: the destination holds {destination.nbytes} bytes, the source {size_bytes}")
    to, out_of = _address(destination), _address(source)
    if abs(to - out_of) < size_bytes:
        raise AutotmError(f"{label}: destination and source overlap: {size_bytes} bytes, {abs(to - out_of)} apart")
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
    """One prepared copy: `start` returns at once, `wait` when the bytes are there. It may be started many times.

    Kernels may run in between; whoever starts it keeps them from the bytes of both ends.

    Args:
        engine: copies it.
        destination, source: contiguous arrays of one size, not overlapping.
        deadline: copies with a later one wait for this one.
        stores: of the engine's thread.

    Attributes:
        deadline: its place among the copies under way.
        started_ns, begun_ns, ended_ns: `perf_counter_ns` when it was last handed over, begun and complete.
        error: what the engine's thread failed with.

    Raises:
        AutotmError: the sizes differ, the two overlap, an array is not contiguous, or the destination is read-only.
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
            if (left_ns := paced_ns - perf_counter_ns()) > 0:
                time.sleep(left_ns / 1e9)  # Kernels may use the core meanwhile.
            if async_copy.is_copied:
                self._end(async_copy, None)

    def _most_urgent(self) -> AsyncCopy | None:
        """Return the first of the queue, which stays in it; None when the engine is closed."""
        with self._changed:
            while not self._queue and not self._is_closed:
                self._changed.wait()
            return None if self._is_closed else self._queue[0][2]

    def _end(self, async_copy: AsyncCopy, error: BaseException | None) -> None:
        with self._changed:
            self._queue = [entry for entry in self._queue if entry[2] is not async_copy]
            heapq.heapify(self._queue)
        async_copy.end(error)
