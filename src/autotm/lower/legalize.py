"""Relax operators as our own kernels where the schedules need their form; the rest as Relax's own."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te, tirx

from autotm.kernels import conv, data_movement, matmul, window
from autotm.lower.geometry import conv_geometry, is_matrix_product, pool_geometry, shape_of

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _builtin(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    geometry = conv_geometry(call)
    return builder.call_te(conv.conv2d, *call.args, *geometry) if geometry else _builtin(builder, call)


def _matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(matmul.matmul, *call.args) if is_matrix_product(call) else _builtin(builder, call)


def _pool(function: Callable[..., object]) -> Legalize:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        geometry = pool_geometry(call)
        return builder.call_te(function, call.args[0], *geometry) if geometry else _builtin(builder, call)

    return legalize


def _concat(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return data_movement.call_concat(builder, list(call.args[0]), int(call.attrs.axis))


def _where(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax would pass scalar constants as tensors; as immediates they need no memory.
    shape = shape_of(call)

    def select(condition: te.Tensor, *branches: te.Tensor | float) -> te.Tensor:
        def at(value: te.Tensor | float, index: tuple[tirx.Var, ...]) -> tirx.PrimExpr:
            if not isinstance(value, te.Tensor):
                return tirx.const(value, "float32")
            lead = len(index) - len(value.shape)
            return value(*(0 if int(extent) == 1 else i for i, extent in zip(index[lead:], value.shape, strict=True)))

        return te.compute(shape, lambda *i: tirx.Select(at(condition, i), *(at(b, i) for b in branches)), name="where")

    return builder.call_te(select, *(_immediate(argument) for argument in call.args))


def _immediate(argument: relax.Expr) -> relax.Expr | float:
    if isinstance(argument, tvm.ir.Constant) and not argument.value.shape:
        return float(argument.value.numpy())
    return argument


def _keep(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call


LEGALIZE: dict[str, Legalize] = {
    "relax.nn.conv2d": _conv2d,
    "relax.matmul": _matmul,
    "relax.nn.max_pool2d": _pool(window.max_pool2d),
    "relax.nn.avg_pool2d": _pool(window.avg_pool2d),
    "relax.concat": _concat,
    "relax.where": _where,
    # A reshape moves nothing: it stays an operator, and becomes a view of the same tensor in the graph.
    "relax.reshape": _keep,
}


def fused_kernels(step: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The step as a flat list of calls to unscheduled, fused TIR functions (and reshapes)."""
    passes = [
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(LEGALIZE),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.DeadCodeElimination(["main"]),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(step)
