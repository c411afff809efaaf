"""TVM's runtime without its compiler: all that loading and calling a compiled kernel takes.

`import tvm` loads the compiler and its hundreds of modules, a second for a process that only runs kernels.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm_ffi

_ALIGNMENT_BYTES = 64
_PART = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""TVM's `FTVMParallelLambda`: the part's number, what all parts share, what the launch was given."""
_AS_MANY_AS_THREADS = 0


@functools.cache
def _loaded() -> ctypes.CDLL:
    """The shared library that compiled kernels call for their threads; the same one that `import tvm` loads."""
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
    return ctypes.CDLL(str(Path(found.origin).parent / "lib" / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)


def global_function(name: str) -> Any:
    """A function of TVM's runtime."""
    _loaded()
    return tvm_ffi.get_global_func(name)


def load_module(path: Path) -> Any:
    """The functions of a shared library of kernels, by their symbols.

    Raises:
        RuntimeError: the file is no such library.
    """
    _loaded()
    return tvm_ffi.load_module(str(path))


def tensor(view: Any) -> Any:
    """An array as a kernel takes it: the same memory, contiguous, at a multiple of 64 bytes."""
    return tvm_ffi.from_dlpack(view, require_alignment=_ALIGNMENT_BYTES, require_contiguous=True)


def launch_parts(part: Callable[[], None]) -> None:
    """Run `part` as a parallel kernel's parts are run: once on each thread of the pool of the thread that calls."""

    def call(_number: int, _environment: int | None, _closure: int | None) -> int:
        part()
        return 0

    _loaded().TVMBackendParallelLaunch(_PART(call), None, _AS_MANY_AS_THREADS)


@contextmanager
def launching_on(device_index: int, stream: int) -> Iterator[None]:
    """Have kernels for CUDA that this thread calls launched on a stream, a `cudaStream_t` as a number."""
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device_index), stream):
        yield
