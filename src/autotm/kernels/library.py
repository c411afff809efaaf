"""Compiled kernels as libraries: linked, loaded by TVM's runtime, bound to memory, called on pinned threads."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi
from pydantic import TypeAdapter, ValidationError

from autotm.model.errors import AutotmError, BadInputError, DamagedFileError
from autotm.model.files import write_atomically
from autotm.model.graph import ALIGNMENT_BYTES, Launch
from autotm.model.machine import Machine
from autotm.model.system import find_compiler

# Object files -> one shared library.

_BUILT_FOR = "autotm: built for {} threads;"
"""Text in a library, by which it tells how many threads its loops were shared among."""


def threads_of(library: bytes) -> int | None:
    """Return how many threads a library says that it was built for."""
    match = re.search(_BUILT_FOR.format(r"(\d+)").encode(), library)
    return int(match[1]) if match else None


def link(objects: Sequence[Path], path: Path, threads: int | None = None) -> None:
    """Link all `objects` to a shared library at `path`, which is written whole or not at all.

    `threads` is what its kernels are built for, if it is to say so (`threads_of`).

    Raises:
        AutotmError: there is no C compiler, or linking failed.
    """
    compiler = find_compiler()

    def write(output: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            files = list(objects)
            if threads is not None:
                files.insert(0, Path(folder) / "built_for.c")
                files[0].write_text(f'const char autotm_built_for[] = "{_BUILT_FOR.format(threads)}";\n', "utf-8")
            listed = Path(folder) / "files.txt"  # A command line could not hold so many.
            listed.write_text("\n".join(f'"{file.absolute()}"' for file in files), encoding="utf-8")
            # Two processes may have compiled the same kernel: either will do.
            command = [compiler, "-shared", "-fPIC", "-Wl,-z,muldefs", "-o", str(output), f"@{listed}", "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AutotmError(
                f"linking {path} of {len(files)} files failed; if one is damaged, remove {files[-1].parent} and "
                f"try again:\n{done.stderr.strip()}"
            )

    write_atomically(path, write)


# TVM's runtime without its compiler: all that loading and calling a compiled kernel takes.
#
# `import tvm` loads the compiler and its hundreds of modules, a second for a process that only runs kernels.

_PART = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""TVM's `FTVMParallelLambda`: the part's number, what all parts share, what the launch was given."""
_AS_MANY_AS_THREADS = 0  # TVM's value for a part for each thread


@functools.cache
def _loaded() -> ctypes.CDLL:
    """Return the shared library that compiled kernels call for their threads; the same one that `import tvm` loads."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
    return ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)


# How many threads run a kernel, and on which cores: set before the first call, and checked.

_LOG = logging.getLogger(__name__)

_ONE_CORE_PER_THREAD = -2
"""TVM's affinity mode `kSpecifyOneCorePerThread`."""

_CHECK_S, _ENOUGH = 0.05, 0.75
"""Seconds that a check of the cores takes; it warns if kernels keep less than this share of their cores busy."""
_PINNED = threading.local()
ON_LEAVING: list[Callable[[], None]] = []
"""Called when a thread leaves `pinned`."""


@contextmanager
def pinned(machine: Machine) -> Iterator[None]:
    """Give TVM's thread pool `machine.threads` threads on `machine.cpus`, and hold the calling thread on the first.

    TVM makes one pool per calling thread, at the first kernel call, and counts cores wrongly in virtual machines, so
    this must come before that call and on the same thread. On leaving, the calling thread may use its old cores again.

    Raises:
        AutotmError: the pool exists already with fewer threads, or a core cannot be used.
    """
    before = os.sched_getaffinity(0)
    os.environ["TVM_NUM_THREADS"] = str(machine.threads)
    cpus = [str(cpu) for cpu in machine.cpus]
    _loaded()
    tvm_ffi.get_global_func("runtime.config_threadpool")(_ONE_CORE_PER_THREAD, machine.threads, cpus)
    threads = int(tvm_ffi.get_global_func("runtime.NumThreads")())
    if threads != machine.threads:
        raise AutotmError(
            f"TVM runs kernels on {threads} threads, {machine.threads} were asked by machine '{machine.name}': its "
            "thread pool was started before the count was set; start a new process"
        )
    try:
        os.sched_setaffinity(0, {machine.cpus[0]})
    except OSError as error:
        raise AutotmError(
            f"machine '{machine.name}': cpus: cannot run on core {machine.cpus[0]} ({error}); usable: {sorted(before)}"
        ) from None
    previous, _PINNED.machine = getattr(_PINNED, "machine", None), machine
    try:
        yield
    finally:
        _PINNED.machine = previous
        for leave in ON_LEAVING:
            leave()
        os.sched_setaffinity(0, before)


def pinned_machine() -> Machine | None:
    """Return the machine whose threads this thread's kernels run on, within `pinned`."""
    return getattr(_PINNED, "machine", None)


def check_cores(machine: Machine, work: Callable[[], None], busy: int | None = None) -> None:
    """Check how many threads share a kernel, then run one briefly and log if its threads do not keep their cores busy.

    Other processes do not change the count. They make timings longer if they hold cores, which is logged; so is a
    kernel with fewer parts than `busy`.

    Args:
        machine: with the threads that were asked for, on its cores.
        work: calls a parallel kernel.
        busy: how many of these threads the kernel has work for, if not all.

    Raises:
        AutotmError: TVM shares kernels between fewer threads than asked.
    """
    threads = len(kernel_threads())
    if threads < machine.threads:
        raise AutotmError(
            f"kernels run on {threads} threads, machine '{machine.name}' asks for {machine.threads} on cores "
            f"{list(machine.cpus)}; lower 'threads'"
        )
    asked = machine.threads if busy is None else busy
    used = measure_cores(work, _CHECK_S)
    if used < _ENOUGH * asked:
        _LOG.warning(
            "kernels keep %.2f of %d cores busy: other processes hold them, or memory is short; times will be too long",
            *(used, asked),
        )


def kernel_threads() -> set[int]:
    """Return the threads that run parts of a kernel which this thread calls, itself among them, by Linux's numbers."""
    threads: set[int] = set()

    def part(*_: int | None) -> int:
        threads.add(threading.get_native_id())
        return 0

    _loaded().TVMBackendParallelLaunch(_PART(part), None, _AS_MANY_AS_THREADS)
    return threads


def measure_cores(work: Callable[[], None], min_s: float) -> float:
    """Return the cores kept busy while `work` repeats for at least `min_s` seconds, after a call that wakes threads."""
    work()
    cpu_before, start = time.process_time_ns(), time.perf_counter_ns()
    while time.perf_counter_ns() - start < min_s * 1e9:
        work()
    return (time.process_time_ns() - cpu_before) / (time.perf_counter_ns() - start)


# Compiled kernels: loading them, and binding them to memory so that a call does nothing but compute.

FRAMEWORK_CALL = "autotm.framework"
"""Name of the function that compiled code calls where PyTorch computes a kernel (`torch_operators.py`)."""
ONNX_CALL = "autotm.onnx"
"""Name of the function that compiled code calls where ONNX's reference computes a kernel (`onnx_operators.py`)."""
LOOP_CALL = "autotm.loop"
"""Name of the function that compiled code calls where a kernel is a loop or branch (`control/calls.py`)."""
_FRAMEWORKS = {
    LOOP_CALL: ("autotm.control.calls", "tvm", "TVM"),
    FRAMEWORK_CALL: ("autotm.kernels.torch_operators", "torch", "PyTorch"),
    ONNX_CALL: ("autotm.kernels.onnx_operators", "onnx", "ONNX"),
}
"""By function: the module that answers the call, the package that the module needs, and the package's usual name."""

Array = npt.NDArray[Any]
BoundKernel = Callable[[], None]


@dataclass(frozen=True)
class KernelLibrary:
    """An opened `kernels.so`.

    Attributes:
        path: where it was read from.
        content_hash: hash of the file; equal hashes run the same machine code.
        threads: how many its kernels were built for, if it says so. Results do not depend on how many run it.
    """

    path: Path
    content_hash: str
    threads: int | None
    _module: Any = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> KernelLibrary:
        """Open a library that `lower` exported.

        Raises:
            DamagedFileError: the file is missing or is not a library this TVM can open.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise DamagedFileError(f"{path}: no such kernel library; build it with: snakemake {path}") from None
        digest = hashlib.sha256(content).hexdigest()[:16]
        try:
            for call, framework in _FRAMEWORKS.items():
                if call.encode() in content:
                    _require_framework(path, *framework)
            _loaded()
            return cls(path, digest, threads_of(content), tvm_ffi.load_module(str(path)))
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise DamagedFileError(
                f"{path}: damaged kernel library: {reason}; remove it and rebuild: rm {path} && snakemake {path}"
            ) from None

    def busy_threads(self, threads: int) -> int:
        """Return how many of `threads` threads every large kernel has work for; warn where that is not all of them.

        Kernels compute the same on any number: fewer threads share their loops, and of more, some have nothing to do.
        """
        if self.threads is not None and threads > self.threads:
            _LOG.warning(
                "%s: built for %d threads, about to run on %d: most kernels will keep only %d of them busy; lower the "
                "network again for %d threads ('threads' in the machine file, or --config threads=%d)",
                *(self.path, self.threads, threads, self.threads, threads, threads),
            )
            return self.threads
        return threads

    def function(self, symbol: str) -> Callable[..., None]:
        """Return the compiled function of that name.

        Raises:
            BadInputError: the library has no such function.
        """
        try:
            function: Callable[..., None] = self._module[symbol]
        except AttributeError:
            raise BadInputError(
                f"{self.path}: no kernel '{symbol}'; the library belongs to another graph: rebuild both"
            ) from None
        return function

    def bind(self, symbol: str, views: Sequence[Any]) -> BoundKernel:
        """Return the kernel as a call without arguments on `views`, one per slot in calling order, copying nothing.

        Views are NumPy arrays. Their memory is held as long as the returned callable is. A call returns when the kernel
        is done.

        Raises:
            BadInputError: no such function.
            AutotmError: a view is not contiguous or does not start at a multiple of 64 bytes.
        """
        for slot, view in enumerate(views):
            if not view.flags.c_contiguous or not view.flags.writeable:
                raise AutotmError(
                    f"kernel '{symbol}' slot {slot}: memory of shape {view.shape} must be contiguous and writeable"
                )
            if past := view.ctypes.data % ALIGNMENT_BYTES:
                raise AutotmError(
                    f"kernel '{symbol}' slot {slot}: memory starts {past} bytes past a multiple of {ALIGNMENT_BYTES}; "
                    "compiled kernels need it aligned"
                )
        own = {"require_alignment": ALIGNMENT_BYTES, "require_contiguous": True}
        return functools.partial(self.function(symbol), *(tvm_ffi.from_dlpack(view, **own) for view in views))


def _require_framework(path: Path, module: str, package: str, name: str) -> None:
    """Let the kernels of a library call a framework.

    Raises:
        AutotmError: it is not installed here.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise AutotmError(
            f"{path}: some of its kernels are operators of {name}, which is not installed here; "
            f"pip install 'autotm[{package}]'"
        ) from None


def aligned_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised array that a compiled kernel accepts: contiguous, starting at a multiple of 64 bytes."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size].view(kind).reshape(tuple(shape))


# Kernels for GPUs as one file: their fatbin, their launches, and which GPUs they are for.

Launches = Mapping[str, tuple[Launch, ...]]
"""Launches of a kernel, in order, by the name that the graph has for the kernel's function."""
_LISTED = TypeAdapter(dict[str, tuple[Launch, ...]])
_IMAGE, _LAUNCHES = "kernels.fatbin", "launches.json"


@dataclass(frozen=True)
class FatbinLibrary:
    """A zip archive of `kernels.fatbin` and `launches.json`.

    Attributes:
        path: of the file.
        content_hash: of what is in it; equal hashes run the same machine code.
        architectures: that the fatbin has code for, such as `sm_90`.
        launches: of each kernel, by the name that the graph has for its function.
        image: the fatbin.
    """

    path: Path
    content_hash: str
    architectures: tuple[str, ...]
    launches: Launches
    image: bytes = field(repr=False)

    @classmethod
    def save(cls, path: Path, image: bytes, architectures: tuple[str, ...], launches: Launches) -> FatbinLibrary:
        """Write the file, whole or not at all."""
        listed = {symbol: [asdict(launch) for launch in each] for symbol, each in sorted(launches.items())}
        text = json.dumps({"architectures": architectures, "kernels": listed}, indent=1)

        def write(temporary: Path) -> None:
            with zipfile.ZipFile(temporary, "w") as archive:
                for name, content in ((_IMAGE, image), (_LAUNCHES, text.encode())):
                    # Without the time, so that equal kernels make equal files; a fatbin is compressed already.
                    archive.writestr(zipfile.ZipInfo(name), content)

        write_atomically(path, write)
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> FatbinLibrary:
        """Read the file.

        Raises:
            DamagedFileError: it is missing, or not such a file.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                image, text = archive.read(_IMAGE), archive.read(_LAUNCHES)
            listing = json.loads(text)
            launches = _LISTED.validate_python(listing["kernels"])
            architectures = tuple(listing["architectures"])
        except FileNotFoundError:
            raise DamagedFileError(f"{path}: no such library of GPU kernels; lower the network again") from None
        except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
            fault: object = error
            if isinstance(error, ValidationError):  # Its text has several lines for each fault.
                first = error.errors()[0]
                fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise DamagedFileError(
                f"{path}: damaged library of GPU kernels ({fault}); remove it and lower the network again"
            ) from None
        return cls(path, hashlib.sha256(image + text).hexdigest()[:16], architectures, launches, image)
