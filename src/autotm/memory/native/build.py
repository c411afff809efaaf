"""C sources -> shared libraries, compiled once on each computer and kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from pathlib import Path

from autotm.model.files import AutotmError, cache_folder, write_atomically
from autotm.model.machine import find_compiler

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
