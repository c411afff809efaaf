"""A module of Relax with control flow -> one compiled function, called with NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from autotm.control.driver import DRIVER, Lowered, lower
from autotm.control.program import Array, Program
from autotm.control.reader import Limits, read_program
from autotm.control.regions import Area, KernelSet, Part, is_copied
from autotm.control.rewrites import Rewrites
from autotm.kernels import tir
from autotm.kernels.library import aligned_empty
from autotm.kernels.passes import GENERATED, machine_code
from autotm.kernels.target import host_target
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import ALIGNMENT_BYTES

_DESCRIPTOR = np.dtype(
    [
        ("data", "u8"), ("device", "i4"), ("device_index", "i4"), ("axes", "i4"), ("code", "u1"), ("bits", "u1"),
        ("lanes", "u2"), ("shape", "u8"), ("strides", "u8"), ("offset", "u8"),
    ]
)  # fmt: skip
"""A `DLTensor`. Kernels read its address only: shapes and types are part of their code."""
_CPU = 1


@dataclass(frozen=True)
class ControlFunction:
    """A compiled function with its workspace; one call at a time.

    Attributes:
        program: what it computes.
        workspace_bytes: allocated once, for all values between the arguments and the results.
    """

    program: Program
    workspace_bytes: int
    _lowered: Lowered
    _workspace: Array
    _descriptors: Array
    _call: Callable[[], int]
    _held: dict[int, Array]

    def __call__(self, *arguments: Array) -> Array | tuple[Array, ...]:
        """Return the results for some arguments, as new arrays.

        An argument that is contiguous and begins at a multiple of 64 bytes is read where it lies.

        Raises:
            BadInputError: number, shape or type of the arguments is wrong.
            AutotmError: a bound of a loop or the depth of a recursion is passed, or a condition compares NaN.
        """
        self.bind(*arguments)
        self.run()
        results = tuple(view.copy() for view in self._results)
        return results if self.program.is_tuple else results[0]

    def bind(self, *arguments: Array) -> None:
        """Let `run` read these arguments; of those that are not copied, it sees later changes.

        Raises:
            BadInputError: as when called.
        """
        parameters = self.program.parameters
        if len(arguments) != len(parameters):
            raise BadInputError(f"{len(arguments)} arguments given, the function takes {len(parameters)}")
        for index, (value, argument) in enumerate(zip(parameters, arguments, strict=True)):
            if argument is self._held.get(index) and argument.shape == value.shape:
                continue  # Read where it lies, as last time.
            array = np.asarray(argument)
            if (array.shape, str(array.dtype)) != (value.shape, value.dtype):
                raise BadInputError(
                    f"argument {index} ('{value.name}') is {array.shape} {array.dtype}, not {value.kind}; convert it"
                )
            if is_copied(value):
                if value in self._lowered.places:
                    self._view(value)[...] = array
                continue
            if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT_BYTES:
                own = aligned_empty(value.shape, value.dtype)
                own[...] = array
                array = own
            self._held[index] = array
            self._descriptors["data"][self._slots[index]] = array.ctypes.data

    def bind_addresses(self, addresses: Sequence[int]) -> None:
        """Let `run` read arguments at these addresses, multiples of 64."""
        for index, (value, address) in enumerate(zip(self.program.parameters, addresses, strict=True)):
            if not is_copied(value):
                self._descriptors["data"][self._slots[index]] = address
            elif value in self._lowered.places:
                ctypes.memmove(self._view(value).ctypes.data, address, value.size_bytes)

    def copy_results(self, addresses: Sequence[int]) -> None:
        """Copy what `run` has computed to these addresses."""
        for view, address in zip(self._results, addresses, strict=True):
            ctypes.memmove(address, view.ctypes.data, view.nbytes)

    def run(self) -> None:
        """Compute on the arguments that are bound; the results stay in the workspace.

        Raises:
            AutotmError: as when called.
        """
        if failure := self._call():
            raise AutotmError(self._lowered.errors[failure - 1])

    @property
    def parts(self) -> Sequence[Part]:
        """Parts of the program by control flow, in order, the whole first."""
        return self._lowered.parts

    @cached_property
    def _slots(self) -> list[list[int]]:
        """Numbers of the descriptors of each argument."""
        slots: list[list[int]] = [[] for _ in self.program.parameters]
        for number, (area, position) in enumerate(self._lowered.slots):
            if area is Area.ARGUMENT:
                slots[position].append(number)
        return slots

    @cached_property
    def _results(self) -> tuple[Array, ...]:
        return tuple(map(self._view, self._lowered.results))

    def _view(self, value: Any) -> Array:
        start = self._lowered.places[value]
        return self._workspace[start : start + value.size_bytes].view(value.dtype).reshape(value.shape)


def compile_function(
    module: tvm.IRModule,
    target: tvm.target.Target | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    rewrites: Rewrites | None = None,
) -> ControlFunction:
    """Compile the function `main` of a module, with all that it calls, into one function.

    Args:
        module: of Relax; `main` may hold branches, and calls of functions that call themselves.
        target: of LLVM; this host's CPU if None.
        threads: that kernels are scheduled for.
        limits: bounds of loops and recursions.
        rewrites: what is done to the program before it is lowered.

    Raises:
        AutotmError: the module is none that can be compiled.
    """
    return compile_program((rewrites or Rewrites()).apply(read_program(module, limits)), target, threads)


def compile_program(program: Program, target: tvm.target.Target | None = None, threads: int = 1) -> ControlFunction:
    """Compile a program as it is; the arguments are those of `compile_function`.

    Raises:
        AutotmError: an operator has no kernel.
    """
    kernels = KernelSet(target or host_target(threads), threads)
    return _loaded(program, lower(program, kernels), kernels)


def _loaded(program: Program, lowered: Lowered, kernels: KernelSet) -> ControlFunction:
    """Return compiled code with a workspace, in which constants have their values."""
    size = lowered.workspace_bytes + lowered.scratch_bytes
    # Whole words, which the driver reads.
    workspace = aligned_empty((-(-max(size, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES,), "uint8")
    workspace[...] = 0
    axes = np.ones(16, np.int64)
    descriptors = np.zeros(max(len(lowered.slots), 1), _DESCRIPTOR)
    descriptors["device"], descriptors["lanes"] = _CPU, 1
    descriptors["shape"] = descriptors["strides"] = axes.ctypes.data
    starts = {Area.ARGUMENT: 0, Area.WORKSPACE: 0, Area.SCRATCH: lowered.workspace_bytes}
    for number, (area, position) in enumerate(lowered.slots):
        if area is not Area.ARGUMENT:
            descriptors["data"][number] = workspace.ctypes.data + starts[area] + position
    for value, array in program.constants.items():
        start = lowered.places[value]
        workspace[start : start + value.size_bytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    driver, runs = _with_runs(lowered.driver)
    # TVM looks for a function in what its caller's module imports.
    code, code_of_runs = (machine_code(each, kernels.target) for each in ({DRIVER: driver}, runs))
    code_of_runs.import_module(machine_code(kernels.functions, kernels.target))
    code.import_module(code_of_runs)
    pointer = ctypes.c_void_p(descriptors.ctypes.data)
    function = code[DRIVER]

    def call() -> int:
        return int(function(pointer))

    held = {-1: axes}
    return ControlFunction(program, size, lowered, workspace, descriptors, call, held)


_MOST_CALLS = 256
"""Calls of kernels in one function: LLVM's time grows faster than they do, to more than a minute for 9000."""


def _with_runs(driver: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """Return a driver that calls functions in place of long rows of kernels, and these functions by their symbols."""
    runs: dict[str, tirx.PrimFunc] = {}

    def run(calls: Sequence[tirx.Stmt]) -> tirx.Stmt:
        symbol = f"{DRIVER}_{len(runs)}"
        runs[symbol] = tirx.PrimFunc(driver.params, tir.sequence(calls)).with_attr(GENERATED, True)
        return tirx.Evaluate(tirx.call_packed(symbol, *driver.params))

    def cut(row: tirx.SeqStmt) -> tirx.Stmt:
        statements: list[tirx.Stmt] = []
        for calls_kernel, group in groupby(row.seq, _calls_kernel):
            own = list(group)
            if calls_kernel and len(own) > _MOST_CALLS:
                own = [run(own[start : start + _MOST_CALLS]) for start in range(0, len(own), _MOST_CALLS)]
            statements += own
        return tir.sequence(statements)

    return driver.with_body(tvm_ffi.structural_map(driver.body, (tirx.SeqStmt, cut))), runs


def _calls_kernel(statement: tirx.Stmt) -> bool:
    """Return whether a statement of a driver calls a kernel."""
    call = statement.value if isinstance(statement, tirx.Evaluate) else None
    return isinstance(call, tvm.ir.Call) and getattr(call.op, "name", "") == "tirx.tvm_call_packed"
