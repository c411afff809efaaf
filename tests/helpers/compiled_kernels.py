"""Schedules, compiles and calls kernels on guarded memory: a write outside of an operand fails the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from guarded_memory import GuardedMemory
from tvm import te, tirx

from autotm.kernels.passes import machine_code
from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule
from autotm.kernels.target import host_target
from autotm.model.graph import DEFAULT_IMPLEMENTATION

TARGET = host_target(2)


def placeholders(*shapes: Sequence[int]) -> list[te.Tensor]:
    """float32 inputs of these shapes."""
    return [te.placeholder(shape, name=f"p{index}") for index, shape in enumerate(shapes)]


def kernel_of(
    tensors: Sequence[te.Tensor],
    threads: int = 2,
    target: tvm.target.Target = TARGET,
    implementation: str = DEFAULT_IMPLEMENTATION,
) -> ScheduledKernel:
    """The scheduled kernel of a TE graph: inputs, then outputs."""
    return schedule(te.create_prim_func(list(tensors)), target, threads, implementation)


def compiled(func: tirx.PrimFunc, target: tvm.target.Target = TARGET) -> tvm.runtime.Module:
    """The machine code of one function, as symbol `main`."""
    return machine_code({"main": func}, target)


def call(
    kernel: ScheduledKernel,
    inputs: Sequence[np.ndarray],
    target: tvm.target.Target = TARGET,
    shared: Mapping[int, int] | None = None,
) -> list[np.ndarray]:
    """The outputs of a kernel; twice on the same memory, so that state left in a workspace would show.

    Args:
        kernel: scheduled.
        inputs: values of the first operands.
        target: to compile for.
        shared: slot of an output -> slot of the input whose memory it takes.
    """
    shared = shared or {}
    operands = [([int(extent) for extent in slot.shape], str(slot.dtype)) for slot in kernel.func.params]
    memory = GuardedMemory(operands, shared)
    for slot, array in enumerate(memory.arrays[len(inputs) :], len(inputs)):
        if slot not in shared:
            array[...] = np.nan if array.dtype.kind == "f" else 0x7F
    function = compiled(kernel.func, target)["main"]
    views = [tvm.runtime.from_dlpack(array) for array in memory.arrays]
    outputs = slice(len(inputs), len(operands) - len(kernel.workspaces))
    found = []
    for _ in range(2):
        for array, values in zip(memory.arrays, inputs, strict=False):
            array[...] = values
        memory.remember()
        function(*views)
        strays = memory.strays(range(len(inputs), len(operands)))
        assert not strays, f"{kernel.op} wrote where it must not: {strays}"
        found.append([array.copy() for array in memory.arrays[outputs]])
    for before, after in zip(*found, strict=True):
        np.testing.assert_array_equal(before, after)
    return found[0]
