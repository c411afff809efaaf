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


@differentiates("relax.nn.rms_norm")
def _rms_norm_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """With r = 1 / sqrt(mean(x^2) + eps) and g = dy w: dx = r (g - x r^2 mean(g x)), dw = sum(dy x r)."""
    (x, weight), emit, op = call.args, builder.emit, relax.op
    rank = len(shape_of(x))
    axes = sorted(axis % rank for axis in ints(call.attrs.axes))
    if axes != list(range(rank - len(axes), rank)):
        raise NotImplementedError("rms_norm has a gradient along the last axes only")
    epsilon = relax.const(float(call.attrs.epsilon), x.ty.dtype)
    square = emit(op.mean(emit(op.multiply(x, x)), axes, keepdims=True))
    root = emit(op.rsqrt(emit(op.add(square, epsilon))))
    scaled, normed = emit(op.multiply(dy, weight)), emit(op.multiply(x, root))
    shared = emit(op.mean(emit(op.multiply(scaled, normed)), axes, keepdims=True))
    inner = emit(op.subtract(scaled, emit(op.multiply(normed, shared))))
    by_weight = emit(op.multiply(dy, normed))
    others = list(range(rank - len(axes)))
    return [op.multiply(root, inner), op.sum(by_weight, others) if others else by_weight]


@differentiates("relax.nn.group_norm")
def _group_norm_gradient(
    _y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    """With x^ = (x - mean) r and g = dy gamma, means over a group: dx = r (g - mean(g) - x^ mean(g x^))."""
    (x, gamma, _), attrs, emit, op = call.args, call.attrs, builder.emit, relax.op
    if not (attrs.center and attrs.scale):
        raise NotImplementedError("group_norm has a gradient with scale and shift only")
    shape, groups = shape_of(x), int(attrs.num_groups)
    channel = int(attrs.channel_axis) % len(shape)
    apart = (*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
    spatial = [axis % len(shape) for axis in ints(attrs.axes)]
    axes = sorted([channel + 1, *(axis + (axis > channel) for axis in spatial)])

    def mean(value: relax.Expr) -> relax.Var:
        return emit(op.mean(value, axes, keepdims=True))

    def grouped(value: relax.Expr) -> relax.Var:
        return emit(op.reshape(value, apart))

    by_channel = [1] * len(apart)
    by_channel[channel : channel + 2] = apart[channel : channel + 2]
    gamma = emit(op.reshape(gamma, by_channel))
    values, slopes = grouped(x), grouped(dy)
    centred = emit(op.subtract(values, mean(values)))
    epsilon = relax.const(float(attrs.epsilon), x.ty.dtype)
    root = emit(op.rsqrt(emit(op.add(mean(emit(op.multiply(centred, centred))), epsilon))))
    normed, scaled = emit(op.multiply(centred, root)), emit(op.multiply(slopes, gamma))
    shared = emit(op.multiply(normed, mean(emit(op.multiply(scaled, normed)))))
    inner = emit(op.subtract(emit(op.subtract(scaled, mean(scaled))), shared))
    others = [axis for axis in range(len(apart)) if axis not in {channel, channel + 1}]
    sums = [emit(op.sum(value, others)) for value in (emit(op.multiply(slopes, normed)), slopes)]
    return [
        op.reshape(emit(op.multiply(root, inner)), shape),
        *(op.reshape(value, (shape[channel],)) for value in sums),
    ]


def _emit(
    builder: relax.BlockBuilder, function: Callable[..., te.Tensor | list[te.Tensor]], *arguments: relax.Expr | float
) -> relax.Expr:
    return builder.call_te(function, *arguments, primfunc_attrs=OPAQUE)


def _is_last(call: relax.Call) -> bool:
    return int(call.attrs.axis) in {-1, len(shape_of(call)) - 1}


def _is_plain(call: tvm.ir.Call) -> bool:
    attrs = call.attrs
    return ints(attrs.axes) in {(-1,), (len(shape_of(call)) - 1,)} and bool(attrs.center) and bool(attrs.scale)
