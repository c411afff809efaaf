"""Schedules that a search found: how a function is recognised, and how its schedule is replayed on it."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import Trace

from autotm.kernels.code import hoist_workspaces, machine_code
from autotm.kernels.making.build import identity
from autotm.kernels.schedules import ScheduledKernel
from autotm.model.files import AutotmError
from autotm.model.measurement import TunedSchedule
from autotm.model.step import ScheduleKind

_LOG = logging.getLogger(__name__)


class UnusableScheduleError(AutotmError):
    """A found schedule does not fit its function, or its kernel would allocate memory that no plan knows of."""


def workload(func: tirx.PrimFunc) -> str:
    """Hash of an unscheduled function: shapes, dtypes, strides, padding, constants, and the names of its blocks.

    Equal hash, equal meaning; names count only because schedules find blocks by them.
    """
    structure = tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True)
    operands = [(tuple(int(extent) for extent in operand.shape), str(operand.dtype)) for operand in func.params]
    names: list[str] = []
    tvm_ffi.structural_walk(func.body, (SBlock, lambda block: names.append(str(block.name_hint))))
    return hashlib.sha256(f"{structure}\n{operands}\n{names}".encode()).hexdigest()


def to_json(trace: Trace) -> str:
    """The steps and decisions of a schedule as text."""
    return json.dumps(_plain(trace.as_json()), separators=(",", ":"))


def _plain(value: Any) -> Any:
    """TVM's numbers and lists as Python's."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    return [_plain(item) for item in value]


def copy_of(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function under the symbol `main`, sharing nothing: replayed steps change in place what they schedule."""
    copy: tirx.PrimFunc = tvm.ir.load_json(tvm.ir.save_json(func))
    return copy.with_attr("global_symbol", "main")


def replay(func: tirx.PrimFunc, trace: str, own: ScheduledKernel) -> ScheduledKernel:
    """The kernel that a found schedule makes of `func`, named and classed as our `own`.

    Raises:
        UnusableScheduleError: the steps do not fit the function, or a buffer cannot become a workspace.
    """
    schedule = Schedule(tvm.IRModule({"main": copy_of(func)}))
    try:
        Trace.apply_json_to_schedule(json.loads(trace), schedule)
        return as_kernel(schedule.mod["main"].without_attr("global_symbol"), own)
    except UnusableScheduleError:
        raise
    except Exception as error:
        raise UnusableScheduleError(str(error).strip().splitlines()[-1]) from error


def as_kernel(scheduled: tirx.PrimFunc, own: ScheduledKernel) -> ScheduledKernel:
    """A scheduled form of the function behind `own`, with its inner buffers as workspaces.

    Raises:
        UnusableScheduleError: it takes more workspace than our own and all operands together.
    """
    func, workspaces = hoist_workspaces(scheduled.with_attr("tirx.noalias", True))
    kernel = replace(own, func=func, workspaces=workspaces, others=(), kind=ScheduleKind.SEARCHED)
    operands = func.params[: len(func.params) - len(workspaces)]
    allowed = workspace_bytes(own) + sum(_bytes(operand) for operand in operands)
    if workspace_bytes(kernel) > allowed:
        raise UnusableScheduleError(f"it needs {workspace_bytes(kernel)} bytes of workspace, {allowed} are allowed")
    return kernel


def workspace_bytes(kernel: ScheduledKernel) -> int:
    """Bytes of all workspaces of a kernel."""
    return sum(_bytes(operand) for operand in kernel.func.params[len(kernel.func.params) - len(kernel.workspaces) :])


def _bytes(operand: tirx.Buffer) -> int:
    size = int(tvm.DataType(str(operand.dtype)).bits + 7) // 8
    for extent in operand.shape:
        size *= int(extent)
    return size


def compiled(kernel: ScheduledKernel, target: tvm.target.Target) -> tvm.runtime.Module:
    """The machine code of a kernel under the symbol `main`, held in memory.

    Raises:
        UnusableScheduleError: TVM cannot compile it, or the code would call TVM's allocator.
    """
    try:
        module = machine_code({"main": kernel.func}, target)
    except Exception as error:
        raise UnusableScheduleError(str(error).strip().splitlines()[-1]) from error
    calls = (line for line in module.inspect_source("ll").splitlines() if "AllocWorkspace" in line)
    # The name also stands in the declaration of a pointer to the function, which every module has.
    if any("global" not in line.split("=")[-1] for line in calls):
        raise UnusableScheduleError("its code allocates memory")
    return module


def choose(
    func: tirx.PrimFunc, own: ScheduledKernel, found: TunedSchedule | None, target: tvm.target.Target
) -> ScheduledKernel:
    """The kernel to take: the one that was `found` and measured faster than our `own`, if it can be had."""
    if found is None:
        return own
    if identity(own.func, target) != found.own_identity:
        _LOG.info("'%s': its tuned schedule was measured beside another one of ours; tune it again", own.op)
        return own
    try:
        return replay(func, found.trace, own)
    except UnusableScheduleError as error:
        _LOG.warning("'%s': its tuned schedule cannot be used: %s", own.op, error)
        return own
