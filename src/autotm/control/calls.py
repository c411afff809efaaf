"""Loops and branches as kernels of a step: compiled code calls them by name, on the memory that a plan gives.

Such a kernel is a function of TVM whose body is one call of `LOOP_CALL`, with a module of Relax as text and the
addresses of its operands. This file compiles the module once in each process, and makes the call.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi

from autotm.control.driver import lower
from autotm.control.function import ControlFunction, compile_function
from autotm.control.reader import read_program
from autotm.control.regions import KernelSet, Part
from autotm.control.rewrites import Rewrites
from autotm.kernels.library import LOOP_CALL
from autotm.kernels.target import host_target
from autotm.model.errors import AutotmError

_MOST = 1024
"""Modules that stay compiled: more than a step has loops."""


@functools.lru_cache(maxsize=_MOST)
def costs(text: str) -> tuple[int, int]:
    """Return the floating-point operations of a call, in which steps that data decide count once, and its workspace.

    Raises:
        AutotmError: the module is none that can be compiled.
    """
    program = Rewrites().apply(read_program(tvm.ir.load_json(text)))
    lowered = lower(program, KernelSet(host_target(1), 1))
    return _flops(lowered.parts), lowered.workspace_bytes + lowered.scratch_bytes


def _flops(parts: list[Part]) -> int:
    total, around = 0, [1]
    for part in parts:
        del around[part.level + 1 :]
        around.append(around[part.level] * (part.times or 1))
        total += around[-1] * part.flops
    return total


@functools.lru_cache(maxsize=_MOST)
def _compiled(text: str) -> ControlFunction:
    return compile_function(tvm.ir.load_json(text))


def _run(text: str, *addresses: Any) -> None:
    function = _compiled(text)
    count = len(function.program.parameters)
    function.bind_addresses([address.value for address in addresses[:count]])
    function.run()
    function.copy_results([address.value for address in addresses[count:]])


tvm_ffi.register_error("AutotmError", AutotmError)
tvm_ffi.register_global_func(LOOP_CALL, _run, override=True)
