"""Schedules, compiles and calls kernels on guarded memory: a write outside of an operand fails the call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import te, tirx

from autotm.kernels.build import compile_module
from autotm.kernels.dispatch import ScheduledKernel, schedule
from autotm.kernels.target import host_target

TARGET = host_target(2)
GUARD_BYTES = 256
_PATTERN = 0xA5


class Guarded:
    """An array at a multiple of 64 bytes between two guard zones, filled with NaN (or 0x7f) unless given values."""

    def __init__(self, shape: Sequence[int], dtype: str, values: np.ndarray | None = None) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._memory = np.full(size + 2 * GUARD_BYTES + 64, _PATTERN, np.uint8)
        self._start = -(self._memory.ctypes.data + GUARD_BYTES) % 64 + GUARD_BYTES
        self._end = self._start + size
        self.array = self._memory[self._start : self._end].view(dtype).reshape(shape)
        self.array[...] = values if values is not None else (np.nan if dtype.startswith("float") else 0x7F)

    def check(self, name: str) -> None:
        """Fail if a guard zone was written."""
        assert (self._memory[: self._start] == _PATTERN).all(), f"wrote below {name}"
        assert (self._memory[self._end :] == _PATTERN).all(), f"wrote beyond {name}"


def kernel_of(tensors: Sequence[te.Tensor], threads: int = 2, target: tvm.target.Target = TARGET) -> ScheduledKernel:
    """The scheduled kernel of a TE graph: inputs, then outputs."""
    return schedule(te.create_prim_func(list(tensors)), target, threads)


def compiled(func: tirx.PrimFunc, target: tvm.target.Target = TARGET) -> tvm.runtime.Module:
    """The machine code of one function, as symbol `main`."""
    return compile_module({"main": func}, target)


def call(kernel: ScheduledKernel, inputs: Sequence[np.ndarray], target: tvm.target.Target = TARGET) -> list[np.ndarray]:
    """The outputs of a kernel; twice on the same memory, so that state left in a workspace would show."""
    operands = []
    for slot, parameter in enumerate(kernel.func.params):
        shape, dtype = [int(extent) for extent in parameter.shape], str(parameter.dtype)
        operands.append(Guarded(shape, dtype, inputs[slot] if slot < len(inputs) else None))
    function = compiled(kernel.func, target)["main"]
    views = [tvm.runtime.from_dlpack(operand.array) for operand in operands]
    count = len(operands) - len(kernel.workspaces)
    function(*views)
    first = [operand.array.copy() for operand in operands[len(inputs) : count]]
    function(*views)
    for slot, operand in enumerate(operands):
        operand.check(f"operand {slot} of {kernel.op}")
    for slot, (operand, values) in enumerate(zip(operands, inputs, strict=False)):
        np.testing.assert_array_equal(operand.array, values, err_msg=f"input {slot} of {kernel.op} was written")
    outputs = [operand.array for operand in operands[len(inputs) : count]]
    for before, after in zip(first, outputs, strict=True):
        np.testing.assert_array_equal(before, after)
    return outputs
