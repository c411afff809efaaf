"""Softmax, its logarithm, and layer normalization along the last axis: kernels that work row by row."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import layer_norm, softmax
from autotm.lower.operators.rules import builtin, differentiates, ints, legalizes, shape_of

_REDUCTION = {"op_pattern": 3}
"""Lets elementwise work in front be fused, and none behind."""


@legalizes("relax.nn.softmax")
def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _emit(builder, softmax.softmax, *call.args) if _is_last(call) else builtin(builder, call)


@differentiates("relax.nn.softmax")
def _softmax_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    if not _is_last(call):
        return relax_rules.softmax_grad(y, call, dy, builder)
    return [_emit(builder, softmax.softmax_gradient, y, dy)]


@legalizes("relax.nn.log_softmax")
def _log_softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _emit(builder, softmax.log_softmax, *call.args) if _is_last(call) else builtin(builder, call)


@differentiates("relax.nn.log_softmax")
def _log_softmax_gradient(
    y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    if not _is_last(call):
        return relax_rules.log_softmax_grad(y, call, dy, builder)
    return [builder.call_te(softmax.log_softmax_gradient, y, dy, primfunc_attrs=_REDUCTION)]


@legalizes("relax.nn.layer_norm")
def _layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_plain(call):
        return builtin(builder, call)
    return _emit(builder, layer_norm.layer_norm, *call.args, float(call.attrs.epsilon))


@differentiates("relax.nn.layer_norm")
def _layer_norm_gradient(
    _y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    if not _is_plain(call):
        message = "layer_norm has a gradient along the last axis, with scale and shift, only"
        raise NotImplementedError(message)
    x, gamma, _ = call.args
    found = builder.emit(_emit(builder, layer_norm.layer_norm_gradient, x, gamma, dy, float(call.attrs.epsilon)))
    return [builder.emit(relax.TupleGetItem(found, index)) for index in range(3)]


def _emit(
    builder: relax.BlockBuilder, function: Callable[..., te.Tensor | list[te.Tensor]], *arguments: relax.Expr | float
) -> relax.Expr:
    return builder.call_te(function, *arguments, primfunc_attrs=OPAQUE)


def _is_last(call: relax.Call) -> bool:
    return int(call.attrs.axis) in {-1, len(shape_of(call)) - 1}


def _is_plain(call: tvm.ir.Call) -> bool:
    attrs = call.attrs
    return ints(attrs.axes) in {(-1,), (len(shape_of(call)) - 1,)} and bool(attrs.center) and bool(attrs.scale)
