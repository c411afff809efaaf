"""One PrimFunc, possibly fused, unscheduled -> a kernel for a GPU: its launches and their source."""

from __future__ import annotations

import logging
from dataclasses import replace

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from autotm.kernels.code import top_blocks
from autotm.kernels.cuda.contraction import contraction_stages, implementations
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.nests import Loops, all_loops, elementwise, groups_of, read_loops
from autotm.kernels.cuda.reductions import reduction
from autotm.kernels.cuda.rows import rows_of
from autotm.kernels.cuda.source import CudaKernel, Facts, kernel_of
from autotm.kernels.cuda.stage import Stage
from autotm.kernels.cuda.written import copies, embedding_update, scatter_sum, single_thread
from autotm.kernels.schedules import (
    CONTRACTIONS,
    FRAMEWORK,
    described,
    inline_intermediates,
    problem_of,
    surround_scalars,
)
from autotm.model.files import AutotmError
from autotm.model.machine import Products
from autotm.model.step import DEFAULT_IMPLEMENTATION, ScheduleKind

_LOG = logging.getLogger(__name__)
_WRITTEN = {"scatter_sum": scatter_sum, "embedding_update": embedding_update}


def cuda_kernel(
    func: tirx.PrimFunc,
    device: CudaDevice,
    implementation: str = DEFAULT_IMPLEMENTATION,
    products: Products = "float32",
) -> CudaKernel:
    """A function by its main block; one that no rule knows runs on a single thread, and a warning says so.

    Args:
        func: neither scheduled nor compiled.
        device: what it is tiled for.
        implementation: `default`, or one of its `others`.
        products: what contractions may round their factors to. Whether this one does, its own `products` says.

    Raises:
        ValueError: there is no such implementation of it.
        AutotmError: a framework computes it, on the processor.
    """
    if FRAMEWORK in func.attrs:
        raise AutotmError(
            f"operator {func.attrs[FRAMEWORK]} has no kernel here, and its framework's runs on the processor: steps on "
            "a GPU take kernels='tvm'"
        )
    sch = Schedule(tvm.IRModule({"main": func}))
    op, op_class, flops = described(sch)
    parameters = list(func.params)
    if implementation != DEFAULT_IMPLEMENTATION:
        if op_class not in CONTRACTIONS:
            message = f"'{op}' has no implementation '{implementation}'"
            raise ValueError(message)
        problem = problem_of(sch, sch.get_sblock(op))
        (stages, workspaces), done = contraction_stages(problem, device, implementation, products)
        facts = Facts(op, op_class, flops, (), ScheduleKind.GENERATED, done)
        return kernel_of(stages, parameters, workspaces, facts, device)
    facts = Facts(op, op_class, flops, (), ScheduleKind.AS_WRITTEN)
    try:
        stages, workspaces, facts = _scheduled(sch, facts, device, products)
    except Exception as error:  # noqa: BLE001  (TVM's checks raise anything; a slow kernel is better than none)
        _LOG.warning("no GPU schedule for '%s', on one thread: %s", op, str(error).strip().splitlines()[-1])
        stages, workspaces = single_thread(func)
    return kernel_of(stages, parameters, workspaces, facts, device)


def _scheduled(
    sch: Schedule, facts: Facts, device: CudaDevice, products: Products
) -> tuple[list[Stage], list[tirx.Buffer], Facts]:
    op = facts.op
    if op in _WRITTEN:
        return _WRITTEN[op](sch, sch.get_sblock(op), device), [], replace(facts, kind=ScheduleKind.GENERATED)
    if facts.op_class in CONTRACTIONS:
        problem = problem_of(sch, sch.get_sblock(op))
        (stages, workspaces), done = contraction_stages(problem, device, DEFAULT_IMPLEMENTATION, products)
        others, kind = implementations(problem, device, products), ScheduleKind.GENERATED
        return stages, workspaces, replace(facts, others=others, kind=kind, products=done)
    stages, workspaces = _general(sch, device)
    return stages, workspaces, replace(facts, kind=ScheduleKind.GENERAL)


def _general(sch: Schedule, device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    inline_intermediates(sch)
    surround_scalars(sch)
    blocks = all_loops(sch)
    if blocks is None:
        return _mixed(sch, device)
    intermediates = _intermediates(sch)
    if (found := rows_of(blocks, intermediates, device)) is not None:
        stage, workspaces = found
        return [stage], workspaces
    return _in_order(blocks, device, intermediates)


def _in_order(
    blocks: list[Loops], device: CudaDevice, intermediates: list[tirx.Buffer]
) -> tuple[list[Stage], list[tirx.Buffer]]:
    """A launch, or several, for each group of blocks."""
    stages: list[Stage] = []
    workspaces = list(intermediates)
    for group in groups_of(blocks):
        if not group[0].nest.reduction:
            stages.append(elementwise(group))
            continue
        found, partial = reduction(group[0], device)
        stages += found
        workspaces += partial
    return stages, workspaces


def _mixed(sch: Schedule, device: CudaDevice) -> tuple[list[Stage], list[tirx.Buffer]]:
    """Blocks of which some are written out."""
    stages: list[Stage] = []
    workspaces = _intermediates(sch)
    for block in top_blocks(sch) or [sch.get_sblock(sch.mod["main"].body.block.name_hint)]:
        loops = read_loops(sch, block)
        if loops is None:
            stages += copies(sch.get(block).body)
            continue
        found, partial = _in_order([loops], device, [])
        stages += found
        workspaces += partial
    return stages, workspaces


def _intermediates(sch: Schedule) -> list[tirx.Buffer]:
    return list(sch.mod["main"].body.block.alloc_buffers)
