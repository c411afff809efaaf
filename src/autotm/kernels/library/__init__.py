"""Compiled kernels as libraries: linked, loaded, called on a number of threads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autotm.kernels.library.fatbin_library import FatbinLibrary, Launches
from autotm.kernels.library.library import FRAMEWORK_CALL, ONNX_CALL, Array, BoundKernel, KernelLibrary, aligned_empty
from autotm.kernels.library.link import link
from autotm.kernels.library.processes import cores, in_processes
from autotm.kernels.library.threads import check_cores, pinned
from autotm.kernels.library.tvm_runtime import launching_on
from autotm.kernels.library.yardsticks import (
    MULTIPLY_ADDS,
    Yardstick,
    Yardsticks,
    co_runners,
    contraction_flop_per_s,
    multiply_add_flop_per_s,
)

if TYPE_CHECKING:
    from autotm.kernels.library.framework import Operation, bound, constant_as_text, encoded, seeded
    from autotm.kernels.library.onnx_operators import OnnxOperation, reference_evaluator

_OF_FRAMEWORK = dict.fromkeys(("Operation", "bound", "constant_as_text", "encoded", "seeded"), "framework")
_OF_FRAMEWORK |= dict.fromkeys(("OnnxOperation", "reference_evaluator"), "onnx_operators")

__all__ = [
    "FRAMEWORK_CALL",
    "MULTIPLY_ADDS",
    "ONNX_CALL",
    "Array",
    "BoundKernel",
    "FatbinLibrary",
    "KernelLibrary",
    "Launches",
    "OnnxOperation",
    "Operation",
    "Yardstick",
    "Yardsticks",
    "aligned_empty",
    "bound",
    "check_cores",
    "co_runners",
    "constant_as_text",
    "contraction_flop_per_s",
    "cores",
    "encoded",
    "in_processes",
    "launching_on",
    "link",
    "multiply_add_flop_per_s",
    "pinned",
    "reference_evaluator",
    "seeded",
]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch or ONNX when it is first used: few processes run their kernels."""
    if name not in _OF_FRAMEWORK:
        raise AttributeError(f"module 'autotm.kernels.library' has no attribute '{name}'")
    return getattr(import_module(f"autotm.kernels.library.{_OF_FRAMEWORK[name]}"), name)
