"""Schedules, compiles and calls kernels on guarded memory: a write outside of an operand fails the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx

from autotm.kernels.passes import machine_code
from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule
from autotm.kernels.target import host_target
from autotm.model.graph import DEFAULT_IMPLEMENTATION

TARGET = host_target(2)


def host(threads: int = 2, mcpu: str | None = None) -> tvm.target.Target:
    """This host's target, or that of another CPU whose instructions it has."""
    if mcpu is None:
        return host_target(threads)
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": threads})


def placeholders(*shapes: Sequence[int]) -> list[te.Tensor]:
    """float32 inputs of these shapes."""
    return [te.placeholder(shape, name=f"p{index}") for index, shape in enumerate(shapes)]


def kernel_of(
    function: Sequence[te.Tensor] | tirx.PrimFunc,
    threads: int = 2,
    target: tvm.target.Target = TARGET,
    implementation: str = DEFAULT_IMPLEMENTATION,
) -> ScheduledKernel:
    """The scheduled kernel of a function, or of the inputs, then outputs, of a TE graph."""
    if not isinstance(function, tirx.PrimFunc):
        function = te.create_prim_func(list(function))
    return schedule(function, target, threads, implementation)


def fused(build: Callable[..., relax.Expr], shapes: Mapping[str, Sequence[int]]) -> list[tirx.PrimFunc]:
    """The fused functions, in calling order, that Relax makes of `build(builder, *variables)`."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *variables))
        builder.emit_func_output(result)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with TARGET:
        module = tvm.transform.Sequential(passes)(builder.get())
    calls = [binding.value for binding in module["main"].body.blocks[0].bindings]
    return [module[call.args[0]].without_attr("global_symbol") for call in calls if isinstance(call, relax.Call)]


def compiled(func: tirx.PrimFunc, target: tvm.target.Target = TARGET) -> tvm.runtime.Module:
    """The machine code of one function, as symbol `main`."""
    return machine_code({"main": func}, target)


GUARD_BYTES = 4096
_ALIGNMENT = 64
_PAGE = 4096


class GuardedMemory:
    """Operands at multiples of 64 bytes, at least `GUARD_BYTES` apart; random bytes, canaries, everywhere else."""

    def __init__(self, operands: Sequence[tuple[Sequence[int], str]], shared: Mapping[int, int] | None = None) -> None:
        """Lay out operands of some shapes and types; `shared` says which slot lies in the memory of which other."""
        self._spans: list[tuple[int, int]] = []
        self.arrays: list[np.ndarray] = []
        end = GUARD_BYTES
        for shape, dtype in operands:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._spans.append((end, end + size))
            # An operand ends anywhere in a line: the gap to the next one is at least a guard zone, and odd.
            end = -(-(end + size + GUARD_BYTES) // _ALIGNMENT) * _ALIGNMENT
        raw = np.empty(end + GUARD_BYTES + _PAGE, np.uint8)
        begin = -raw.ctypes.data % _PAGE
        self._bytes = raw[begin : begin + end + GUARD_BYTES]
        # After alignment: what a stray write changes must not depend on where the memory lies.
        self._bytes[:] = np.random.default_rng(0).integers(0, 256, len(self._bytes), np.uint8)
        for slot, other in (shared or {}).items():
            self._spans[slot] = self._spans[other]
        for (shape, dtype), (first, last) in zip(operands, self._spans, strict=True):
            self.arrays.append(self._bytes[first:last].view(dtype).reshape(shape))
        self._before = self._bytes.copy()

    def remember(self) -> None:
        """What is in memory now is what must stay there."""
        self._before = self._bytes.copy()

    def strays(self, writable: Sequence[int]) -> list[str]:
        """Where memory changed since then, other than in `writable` slots; in words."""
        changed = self._bytes != self._before
        for slot in writable:
            first, last = self._spans[slot]
            changed[first:last] = False
        return [self._place(int(at)) for at in np.flatnonzero(changed)[:5]]

    def _place(self, at: int) -> str:
        slot = min(range(len(self._spans)), key=lambda slot: self._distance(slot, at))
        first, last = self._spans[slot]
        if first <= at < last:
            return f"operand {slot}, byte {at - first}"
        return f"{first - at} bytes below operand {slot}" if at < first else f"{at - last} bytes beyond operand {slot}"

    def _distance(self, slot: int, at: int) -> int:
        first, last = self._spans[slot]
        return max(first - at, at - last + 1, 0)


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
    runs = []
    for _ in range(2):
        for array, values in zip(memory.arrays, inputs, strict=False):
            array[...] = values
        memory.remember()
        function(*views)
        strays = memory.strays(range(len(inputs), len(operands)))
        assert not strays, f"{kernel.op} wrote where it must not: {strays}"
        runs.append([array.copy() for array in memory.arrays[outputs]])
    for before, after in zip(*runs, strict=True):
        np.testing.assert_array_equal(before, after)
    return runs[0]
