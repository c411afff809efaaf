"""Calls of the CUDA runtime: what they return, or an error that says what was asked and what to do."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from autotm.model.files import AutotmError

REMEDIES = {
    "cudaErrorInsufficientDriver": "no NVIDIA driver, or one older than CUDA 13 needs (580): install or update it",
    "cudaErrorNoDevice": "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorInvalidDevice": "there is no such GPU: correct device_index in the machine file",
    "cudaErrorDevicesUnavailable": "another process has the GPU for itself (nvidia-smi -q -d COMPUTE): end it, or wait",
    "cudaErrorSystemDriverMismatch": "the driver was updated while it ran: restart the computer",
}
"""By CUDA's name of an error."""


class CudaError(AutotmError):
    """A call of the CUDA runtime failed.

    Attributes:
        name: CUDA's name of the error.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Runtime:
    """The module `cuda.bindings.runtime`, whose functions return an error code and then what they give."""

    module: Any

    def call(self, function: str, *arguments: Any) -> Any:
        """What a function gives: nothing, one value, or a tuple.

        Raises:
            CudaError: it failed.
        """
        error, *given = getattr(self.module, function)(*arguments)
        if error != self.module.cudaError_t.cudaSuccess:
            raise self._failure(function, error)
        return given[0] if len(given) == 1 else tuple(given) or None

    def _failure(self, function: str, error: Any) -> CudaError:
        name = str(getattr(error, "name", error))
        _, text = self.module.cudaGetErrorString(error)
        remedy = REMEDIES.get(name)
        said = f"{function}: {text.decode()} ({name})"
        return CudaError(f"CUDA: {said}" + (f": {remedy}" if remedy else ""), name)


def text_of(value: bytes | str) -> str:
    """What C wrote into a buffer: it ends with a zero byte, behind which the bindings hand over blanks."""
    return (value.decode() if isinstance(value, bytes) else value).partition("\0")[0]


def load_runtime() -> Runtime:
    """NVIDIA's bindings.

    Raises:
        AutotmError: they are not installed.
    """
    try:
        return Runtime(importlib.import_module("cuda.bindings.runtime"))
    except ImportError as error:
        raise AutotmError(
            f"slow memory of kind cuda needs NVIDIA's bindings ({error}): pip install 'autotm[cuda]'"
        ) from None
