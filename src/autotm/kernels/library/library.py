"""Compiled kernels: loading them, and binding them to memory so that a call does nothing but compute."""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.kernels.library.link import threads_of
from autotm.kernels.library.tvm_runtime import load_module, tensor
from autotm.model.files import AutotmError, BadInputError, DamagedFileError
from autotm.model.step import ALIGNMENT_BYTES

_LOG = logging.getLogger(__name__)

FRAMEWORK_CALL = "autotm.framework"
"""What compiled code calls where PyTorch computes a kernel (`framework.py`)."""
ONNX_CALL = "autotm.onnx"
"""What compiled code calls where ONNX's reference computes a kernel (`onnx_operators.py`)."""
_FRAMEWORKS = {
    FRAMEWORK_CALL: ("autotm.kernels.library.framework", "torch", "PyTorch"),
    ONNX_CALL: ("autotm.kernels.library.onnx_operators", "onnx", "ONNX"),
}
"""The module that answers a call, the package that it needs, and what people call that."""

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
            return cls(path, digest, threads_of(content), load_module(path))
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise DamagedFileError(
                f"{path}: damaged kernel library: {reason}; remove it and rebuild: rm {path} && snakemake {path}"
            ) from None

    @classmethod
    def in_memory(cls, module: Any) -> KernelLibrary:
        """The machine code that `machine_code` just made, without a file."""
        return cls(Path("memory"), "", None, module)

    def busy_threads(self, threads: int) -> int:
        """Of so many threads, those that every large kernel has work for; warns where that is not all of them.

        Kernels compute the same on any number: fewer threads share their loops, and of more, some have nothing to do.
        """
        if self.threads is not None and threads > self.threads:
            _LOG.warning(
                "%s: built for %d threads, about to run on %d: most kernels will keep only %d of them busy; lower the "
                "network again for %d threads ('threads' in the machine file, or --config threads=%d)",
                self.path,
                self.threads,
                threads,
                self.threads,
                threads,
                threads,
            )
            return self.threads
        return threads

    def function(self, symbol: str) -> Callable[..., None]:
        """The compiled function of that name.

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
        """The kernel as a call without arguments on `views`, one per slot in calling order, copying nothing.

        Views are NumPy arrays, or speak DLPack where a device has the memory. It is held as long as the returned
        callable is. A call returns when the kernel is done; on a device, when it is launched (`launching_on`).

        Raises:
            BadInputError: no such function.
            AutotmError: a view is not contiguous or does not start at a multiple of 64 bytes.
        """
        for slot, view in enumerate(views):
            _check_view(symbol, slot, view)
        return functools.partial(self.function(symbol), *(tensor(view) for view in views))


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


def _check_view(symbol: str, slot: int, view: Any) -> None:
    if not isinstance(view, np.ndarray):
        return  # TVM checks it.
    if not view.flags.c_contiguous or not view.flags.writeable:
        raise AutotmError(
            f"kernel '{symbol}' slot {slot}: memory of shape {view.shape} must be contiguous and writeable"
        )
    if view.ctypes.data % ALIGNMENT_BYTES:
        raise AutotmError(
            f"kernel '{symbol}' slot {slot}: memory starts {view.ctypes.data % ALIGNMENT_BYTES} bytes past a multiple "
            f"of {ALIGNMENT_BYTES}; compiled kernels need it aligned"
        )


def aligned_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An uninitialised array that a compiled kernel accepts: contiguous, starting at a multiple of 64 bytes."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size].view(kind).reshape(tuple(shape))
