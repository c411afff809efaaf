"""One PrimFunc, possibly fused -> a scheduled one that allocates nothing, or a call of another framework."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from autotm.kernels.passes import GENERATED
from autotm.kernels.schedules.channel_sums import schedule_bias_gradient, schedule_gradient_sums, schedule_statistics
from autotm.kernels.schedules.contraction import schedule_contraction
from autotm.kernels.schedules.memory_bound import inline_intermediates, schedule_blocks, write_out
from autotm.kernels.schedules.rows import (
    schedule_layer_norm,
    schedule_layer_norm_gradient,
    schedule_log_softmax_gradient,
    schedule_softmax,
)
from autotm.kernels.share import SHARED
from autotm.kernels.tables import schedule_embedding_update, schedule_scatter_sum
from autotm.kernels.target import Parallelism, TargetInfo, target_info
from autotm.kernels.tir import OPAQUE, Nest, Workspace, hoist_workspaces, read_nest, top_blocks
from autotm.model.graph import DEFAULT_IMPLEMENTATION, OpClass, ScheduleKind

# Kernels that an operator of another framework computes, or a loop: a call by name, with nothing to schedule.

FRAMEWORK = "autotm.framework"
"""Attribute of such functions: the operator's name, its framework's before it."""
_OP_CLASS, _FLOPS, _WORKSPACE = "autotm.op_class", "autotm.flops", "autotm.workspace_bytes"
_KIND = "autotm.schedule_kind"


def framework_kernel(
    builder: relax.BlockBuilder,
    operands: Sequence[relax.Expr],
    results: Sequence[tuple[tuple[int, ...], str]],
    name: str,
    text: str,
    op_class: OpClass,
    flops: int,
    workspace_bytes: int,
    callee: str,
    kind: ScheduleKind = ScheduleKind.FRAMEWORK,
) -> list[relax.Var]:
    """Emit a call of a function that runs in the framework.

    Args:
        builder: of the step.
        operands: tensors that the function reads.
        results: shape and type of each tensor that it writes.
        name: of the operator, with that of its framework before it, such as `torch_inverse`.
        text: describes the operator to the function.
        op_class: what the operator does to memory.
        flops: floating-point operations of a call.
        workspace_bytes: what the framework allocates during a call, at most.
        callee: the name by which compiled code finds the function: it takes `text` and the addresses of all tensors.
        kind: what computes it.
    """

    def called(*inputs: te.Tensor) -> list[te.Tensor] | te.Tensor:
        return te.extern(
            [list(shape) for shape, _ in results],
            list(inputs),
            lambda ins, outs: tirx.call_packed(callee, text, *(buffer.data for buffer in (*ins, *outs))),
            name=name,
            dtype=[dtype for _, dtype in results],
        )

    attributes = {
        **OPAQUE, FRAMEWORK: name, _OP_CLASS: str(op_class), _FLOPS: flops, _WORKSPACE: workspace_bytes,
        _KIND: str(kind),
    }  # fmt: skip
    call = builder.emit(builder.call_te(called, *operands, primfunc_name_hint=name, primfunc_attrs=attributes))
    if len(results) == 1:
        return [call]
    return [builder.emit(relax.TupleGetItem(call, number)) for number in range(len(results))]


_LOG = logging.getLogger(__name__)

_NAMED = {
    "conv2d": OpClass.CONV_FORWARD,
    "conv2d_data_gradient": OpClass.CONV_DATA_GRADIENT,
    "conv2d_weight_gradient": OpClass.CONV_WEIGHT_GRADIENT,
    **dict.fromkeys(("matmul", "matmul_nt", "matmul_tn", "batched_matmul"), OpClass.MATMUL),
    **dict.fromkeys(("max_pool2d_gradient", "avg_pool2d_gradient"), OpClass.WINDOW_GRADIENT),
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), OpClass.WINDOW),
    "batch_norm_statistics": OpClass.NORMALIZATION,
    **dict.fromkeys(("batch_norm_gradient_sums", "batch_norm_gradient"), OpClass.NORMALIZATION_GRADIENT),
    "batch_norm": OpClass.NORMALIZATION,
    "depthwise_conv2d": OpClass.WINDOW,
    "depthwise_conv2d_data_gradient": OpClass.WINDOW_GRADIENT,
    "depthwise_conv2d_weight_gradient": OpClass.REDUCTION,
    **{f"{name}_gradient": OpClass.NORMALIZATION_GRADIENT for name in ("layer_norm", "log_softmax", "softmax")},
    **dict.fromkeys(("layer_norm", "log_softmax", "softmax"), OpClass.NORMALIZATION),
    "bias_gradient": OpClass.REDUCTION,
    **dict.fromkeys(("sgd_update", "adam_update", "step_factor"), OpClass.ELEMENTWISE),
    "square_sum": OpClass.REDUCTION,
    **dict.fromkeys(("concat", "embedding_concat", "embedding", "taken"), OpClass.DATA_MOVEMENT),
    **dict.fromkeys(("embedding_update", "scatter_sum", "running_sum"), OpClass.DATA_MOVEMENT),
}
"""Main blocks by name, the one that names a fused function first."""
CONTRACTIONS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}
_Generator = Callable[[Schedule, SBlockRV, TargetInfo, int], tuple[str, ...] | None]
_GENERATED: dict[str, _Generator] = {
    **{name: schedule_contraction for name, op_class in _NAMED.items() if op_class in CONTRACTIONS},
    "batch_norm_statistics": schedule_statistics,
    "batch_norm_gradient_sums": schedule_gradient_sums,
    "embedding_update": schedule_embedding_update,
    "scatter_sum": schedule_scatter_sum,
    **dict.fromkeys(("softmax", "softmax_gradient", "log_softmax"), schedule_softmax),
    "log_softmax_gradient": schedule_log_softmax_gradient,
    "layer_norm": schedule_layer_norm,
    "layer_norm_gradient": schedule_layer_norm_gradient,
    "bias_gradient": schedule_bias_gradient,
}
"""Main blocks whose whole function is replaced by generated code for a target and a number of threads."""


@dataclass(frozen=True)
class ScheduledKernel:
    """A function ready to be compiled.

    Attributes:
        func: parameters are inputs, outputs, then workspaces.
        workspaces: shape and dtype of each workspace, in order.
        op: name of the main block.
        op_class: what the kernel does to memory.
        flops: floating-point operations of one call; of a contraction, those of its products and sums only.
        others: implementations that would be other code.
        kind: where its schedule comes from.
    """

    func: tirx.PrimFunc
    workspaces: tuple[Workspace, ...]
    op: str
    op_class: OpClass
    flops: int
    others: tuple[str, ...] = ()
    kind: ScheduleKind = ScheduleKind.GENERATED


def schedule(
    func: tirx.PrimFunc, target: tvm.target.Target, threads: int, implementation: str = DEFAULT_IMPLEMENTATION
) -> ScheduledKernel:
    """Schedule a function by its main block; one that no rule knows gets correct, plainer code.

    Of contractions there are other `IMPLEMENTATIONS` than the default.

    Raises:
        ValueError: there is no such implementation of it.
    """
    if FRAMEWORK in func.attrs:
        kernel, size = outline(func), int(func.attrs[_WORKSPACE])
        func = func.with_attr(GENERATED, True).with_attr("tirx.noalias", True)
        if not size:
            return replace(kernel, func=func)
        # What the framework allocates elsewhere, in fast memory: the limit counts it here.
        parameters = [*func.params, tirx.decl_buffer((size,), "uint8", "workspace")]
        func = tirx.PrimFunc(parameters, func.body, func.ret_type, attrs=func.attrs)
        return replace(kernel, func=func, workspaces=(((size,), "uint8"),))
    sch = Schedule(tvm.IRModule({"main": func}))
    op, op_class, flops = described(sch)
    scheduled, others, kind = _schedule(sch, op, target, threads, implementation)
    # Generated code allocates where it means to, and keeps partial sums from one block of loops to the next.
    marked = write_out(scheduled).with_attr("tirx.noalias", True)
    hoisted, workspaces = hoist_workspaces(marked, relocate=GENERATED not in scheduled.attrs)
    if op_class not in CONTRACTIONS:
        hoisted = hoisted.with_attr(SHARED, True)
    return ScheduledKernel(hoisted, workspaces, op, op_class, flops, others, kind)


def outline(func: tirx.PrimFunc) -> ScheduledKernel:
    """Describe a function without scheduling it, for steps that are modelled and never compiled."""
    if FRAMEWORK in func.attrs:
        name, op_class, flops = (func.attrs[key] for key in (FRAMEWORK, _OP_CLASS, _FLOPS))
        return ScheduledKernel(
            func, (), str(name), OpClass(str(op_class)), int(flops), kind=ScheduleKind(str(func.attrs[_KIND]))
        )
    sch = Schedule(tvm.IRModule({"main": func}))
    return ScheduledKernel(func, (), *described(sch), kind=ScheduleKind.AS_WRITTEN)


def described(sch: Schedule) -> tuple[str, OpClass, int]:
    """Return the name, class and floating-point operations of the unscheduled function in `sch`."""
    blocks = top_blocks(sch)
    nests = [nest for nest in (read_nest(sch, block) for block in blocks) if nest is not None]
    names = [sch.get(block).name_hint for block in blocks] or [sch.mod["main"].body.block.name_hint]
    op, op_class = _classified(nests, [re.sub(r"_\d+$", "", name) for name in names])
    if op_class in CONTRACTIONS:
        return op, op_class, sum(2 * nest.iterations for nest in nests if nest.reduction and nest.name.startswith(op))
    return op, op_class, sum(nest.arithmetic * nest.iterations for nest in nests)


def _classified(nests: list[Nest], names: list[str]) -> tuple[str, OpClass]:
    """Return the name and class of a function from its blocks: a known name first, else the largest block decides."""
    for name, op_class in _NAMED.items():
        if name in names:
            return name, op_class
    reductions = [nest for nest in nests if nest.reduction]
    if reductions:
        main = max(reductions, key=lambda nest: nest.iterations)
        if any("softmax" in name for name in names):
            return "softmax_chain", OpClass.REDUCTION
        # TVM names such blocks after variables of the program, which say nothing of what is computed.
        own = main.name if main.name in {"max", "min"} else "reduction"
        combined = {"Add": "sum", "Max": "max", "Min": "min", "Mul": "product"}
        return combined.get(main.combines, own), OpClass.REDUCTION
    if not nests:
        return names[-1], OpClass.ELEMENTWISE
    if all(nest.arithmetic == 0 and len(nest.loads) <= 1 for nest in nests):
        return "copy", OpClass.DATA_MOVEMENT
    return "elementwise", OpClass.ELEMENTWISE


def _schedule(
    sch: Schedule, op: str, target: tvm.target.Target, threads: int, implementation: str
) -> tuple[tirx.PrimFunc, tuple[str, ...], ScheduleKind]:
    """Return the scheduled function, implementations that would be other code, and where the schedule comes from."""
    func, info = sch.mod["main"], target_info(target)
    if implementation != DEFAULT_IMPLEMENTATION:
        schedule_contraction(sch, sch.get_sblock(op), info, threads, implementation)
        return sch.mod["main"].with_attr(GENERATED, True), (), ScheduleKind.GENERATED
    try:
        return _by_rule(sch, op, info, threads)
    except Exception as error:  # noqa: BLE001  (TVM's checks raise anything; a slow kernel is better than none)
        _LOG.warning("no schedule for '%s', compiled nearly as written: %s", op, str(error).strip().splitlines()[-1])
        plain = Schedule(tvm.IRModule({"main": func}))
        inline_intermediates(plain)  # TVM cannot compile some functions without.
        return plain.mod["main"], (), ScheduleKind.AS_WRITTEN


def _by_rule(
    sch: Schedule, op: str, info: TargetInfo, threads: int
) -> tuple[tirx.PrimFunc, tuple[str, ...], ScheduleKind]:
    """Return as `_schedule`, or raise whatever a rule or TVM raises that cannot schedule the function."""
    if op in _GENERATED:
        others = _GENERATED[op](sch, sch.get_sblock(op), info, threads)
        return sch.mod["main"].with_attr(GENERATED, True), others or (), ScheduleKind.GENERATED
    schedule_blocks(sch, Parallelism(threads, info.lanes))
    return sch.mod["main"], (), ScheduleKind.GENERAL


def has_schedule(func: tirx.PrimFunc, target: tvm.target.Target, threads: int) -> bool:
    """Return whether a rule knows how to schedule a function that `schedule` would otherwise compile as written."""
    sch = Schedule(tvm.IRModule({"main": func}))
    try:
        _by_rule(sch, described(sch)[0], target_info(target), threads)
    except Exception:  # noqa: BLE001  (as above)
        return False
    return True
