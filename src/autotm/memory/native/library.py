"""The functions of `copy.c`, compiled once on each computer: copies by one thread or by a team of threads."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from autotm.model.errors import AutotmError
from autotm.model.files import cache_folder, write_atomically
from autotm.model.system import find_compiler

# C sources -> shared libraries, compiled once on each computer and kept in the user's cache folder.

_OPTIONS = ("-x", "c", "-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread")
"""No processor is named: what depends on it is chosen when it runs, because computers may share the folder."""


def compiled(source: Path) -> ctypes.CDLL:
    """The library that `source` makes, loaded; calls of its functions let go of the interpreter.

    A bundle has it compiled beside the source. Elsewhere it is kept under a hash of all that it depends on, in
    $XDG_CACHE_HOME/autotm or ~/.cache/autotm; where that cannot be written, it is compiled again for every process.

    Raises:
        AutotmError: it has to be compiled, and there is no C compiler, or the compiler fails.
    """
    if (shipped := source.with_suffix(".so")).exists():
        return ctypes.CDLL(str(shipped))
    text = source.read_bytes()
    facts = f"{_OPTIONS}{platform.machine()}{platform.libc_ver()}".encode()
    name = f"{source.stem}-{hashlib.sha256(text + facts).hexdigest()[:16]}.so"
    kept = cache_folder() / name
    try:
        return ctypes.CDLL(str(kept))
    except OSError:
        pass  # It is not there yet, or was damaged.
    try:
        write_atomically(kept, lambda path: compile_library(source, path))
        return ctypes.CDLL(str(kept))
    except OSError:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            path = Path(folder) / name
            compile_library(source, path)
            return ctypes.CDLL(str(path))


def compile_library(source: Path, path: Path) -> None:
    """Write the library that `source` makes.

    Raises:
        AutotmError: there is no C compiler, or it fails.
    """
    command = [find_compiler(), *_OPTIONS, "-o", str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(
            f"compiling {source} failed; copies between memories need it. Is the C compiler whole (gcc and its "
            f"headers: apt-get install gcc libc6-dev)?\n{done.stderr.strip()}"
        )


_USUAL_CACHE_BYTES = 1 << 20


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


def copy_source() -> Path:
    """What these functions are compiled from."""
    return Path(__file__).with_name("copy.c")


@functools.cache
def _functions() -> ctypes.CDLL:
    """The library with its signatures; not at import, because planning needs no copies and so no compiler."""
    library = compiled(copy_source())
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
    """Bytes of a streaming store here: 64 with AVX-512, 32 with AVX2, 16 with SSE2; 0 where memcpy makes all copies."""
    return int(_functions().autotm_widest_store())


@functools.cache
def streamed_bytes() -> int:
    """From that size on a copy streams: half of a core's own (second-level) cache.

    Source and destination no longer fit into it together, so plain stores would put out what is there, and read what
    they overwrite, for data that does not stay either.
    """
    return int(_functions().autotm_own_cache_bytes() or _USUAL_CACHE_BYTES) // 2


def copy_bytes(to: int, out_of: int, size_bytes: int, stores: Stores) -> None:
    """Copy between addresses on the calling thread.

    Args:
        to: address of the destination.
        out_of: address of the source.
        size_bytes: how much; the two must not overlap.
        stores: how.
    """
    _functions().autotm_copy(to, out_of, size_bytes, stores.width_bytes, stores.ahead_bytes)


class Team:
    """Threads that copy together: the caller's, and one helper held on each of `cpus`.

    Helpers sleep between copies, so kernels have the cores for themselves then.

    Raises:
        AutotmError: no thread can run on one of the cores.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        error = ctypes.c_int(0)
        self._team = _functions().autotm_team((ctypes.c_int * len(cpus))(*cpus), len(cpus), ctypes.byref(error))
        if not self._team:
            raise AutotmError(
                f"copy: no threads on cores {list(cpus)}: {os.strerror(error.value)}; this process may use "
                f"{sorted(os.sched_getaffinity(0))}: change cpus in the machine file"
            )
        self._end = weakref.finalize(self, _functions().autotm_team_end, self._team)

    def copy(self, to: int, out_of: int, size_bytes: int, stores: Stores, threads: int) -> None:
        """As `copy_bytes`, by `threads` of the team, or all if it has fewer; callers on several threads take turns."""
        _functions().autotm_team_copy(
            self._team, threads - 1, to, out_of, size_bytes, stores.width_bytes, stores.ahead_bytes
        )

    def close(self) -> None:
        """End the helpers; the team copies no more."""
        self._end()
