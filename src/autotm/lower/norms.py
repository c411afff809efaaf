"""Rules of operators that need sums along some axes: normalizations, softmax, statistics, biases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import relax, te, topi
from tvm.relax.op import _op_gradient as relax_rules
from tvm.relax.op.grad import no_grad

from autotm.kernels import normalization
from autotm.kernels.schedules import channel_sums
from autotm.kernels.tir import OPAQUE
from autotm.lower.rules import (
    Exprs,
    Ints,
    builtin,
    differentiates,
    dtype_of,
    ints,
    is_float,
    legalizes,
    lowered,
    reduced_axes,
    shape_of,
)

# Batch norm: in training, the statistics are the batch's own, and the gradient reuses them; else given ones.
#
# In training, the second result is the batch's mean and the third 1 / sqrt(variance + epsilon), which is what the other
# kernels need, whatever the momentum. A network that keeps running averages makes them of these two
# (`kernels.normalization.running_averages`), as those from PyTorch do; the original's networks keep none.


@legalizes("relax.nn.batch_norm")
def _legalize_batch_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not call.attrs.training:
        return builtin(builder, call)
    _require_scale_and_shift(call)
    x, gamma, beta, *_ = call.args
    epsilon = float(call.attrs.epsilon)
    rows = _with_channels_last(builder, call, x)
    moments = builder.emit(builder.call_te(normalization.statistics, rows, epsilon, primfunc_attrs=OPAQUE))
    mean, inverse = (builder.emit(relax.TupleGetItem(moments, index)) for index in range(2))
    y = builder.emit(builder.call_te(normalization.normalise, rows, gamma, beta, mean, inverse))
    return relax.Tuple([_with_channels_back(builder, call, y), mean, inverse])


@differentiates("relax.nn.batch_norm")
def _batch_norm_gradient(
    results: relax.Var, call: relax.Call, slopes: relax.Expr, builder: relax.BlockBuilder
) -> Exprs:
    _require_scale_and_shift(call)
    x, gamma, _, *running = call.args
    dy = builder.emit(relax.TupleGetItem(slopes, 0))
    still = [relax.op.zeros(shape_of(average), dtype_of(average)) for average in running]
    if not call.attrs.training:
        return [*_frozen_batch_norm_gradient(builder, call, dy), *still]
    mean, inverse = (builder.emit(relax.TupleGetItem(results, index)) for index in (1, 2))
    x, dy = _with_channels_last(builder, call, x), _with_channels_last(builder, call, dy)
    sums = builder.emit(builder.call_te(normalization.gradient_sums, dy, x, mean, inverse, primfunc_attrs=OPAQUE))
    dgamma, dbeta = (builder.emit(relax.TupleGetItem(sums, index)) for index in range(2))
    dx = builder.call_te(normalization.data_gradient, dy, x, gamma, mean, inverse, dgamma, dbeta)
    return [_with_channels_back(builder, call, dx), dgamma, dbeta, *still]


def _frozen_batch_norm_gradient(builder: relax.BlockBuilder, call: relax.Call, dy: relax.Var) -> Exprs:
    """Compute the gradients by data, scale and shift; mean and variance are constants."""
    (x, gamma, _, mean, variance), emit, op, axis = call.args, builder.emit, relax.op, _channel_axis(call)
    along = [extent if other == axis else 1 for other, extent in enumerate(shape_of(x))]
    others = [other for other in range(len(along)) if other != axis]
    inverse = emit(op.rsqrt(variance + relax.const(float(call.attrs.epsilon), dtype_of(x))))
    factor = emit(op.reshape(gamma * inverse, along))
    products = emit(op.sum(dy * (x - op.reshape(mean, along)), others))
    return [dy * factor, products * inverse, op.sum(dy, others)]


def _require_scale_and_shift(call: relax.Call) -> None:
    if not (call.attrs.center and call.attrs.scale):
        raise NotImplementedError(f"{call.op.name} is known with scale and shift only")


def _channel_axis(call: relax.Call) -> int:
    return int(call.attrs.axis) % len(shape_of(call.args[0]))


def _with_channels_last(builder: relax.BlockBuilder, call: relax.Call, x: relax.Expr) -> relax.Expr:
    """Put the channels of `x` last."""
    shape, axis = shape_of(x), _channel_axis(call)
    if math.prod(shape[axis + 1 :]) == 1:
        return x if axis == len(shape) - 1 else builder.emit(relax.op.reshape(x, shape[: axis + 1]))
    order = [other for other in range(len(shape)) if other != axis]
    return builder.emit(builder.call_te(topi.transpose, x, [*order, axis]))


def _with_channels_back(builder: relax.BlockBuilder, call: relax.Call, y: relax.Expr) -> relax.Expr:
    """Put channels that lie last back to where the operator has them."""
    shape, axis = shape_of(call.args[0]), _channel_axis(call)
    if math.prod(shape[axis + 1 :]) == 1:
        return y if axis == len(shape) - 1 else builder.emit(relax.op.reshape(builder.emit(y), shape))
    order = list(range(len(shape) - 1))
    order.insert(axis, len(shape) - 1)
    return builder.emit(builder.call_te(topi.transpose, builder.emit(y), order))


# Normalizations by the mean and variance of groups of channels, and by the root mean square.
#
# Forms and gradients are written with Relax's operators: `emit` turns each into a kernel in a form, and into a variable
# in a gradient.

Emit = Callable[[relax.Expr], relax.Var]


@differentiates("relax.nn.rms_norm")
def _rms_norm_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Compute, with r = 1 / sqrt(mean(x^2) + eps), g = dy w: dx = r (g - x r^2 mean(g x)), dw = sum(dy x r)."""
    (x, weight), emit, op = call.args, builder.emit, relax.op
    rank = len(shape_of(x))
    axes = sorted(axis % rank for axis in ints(call.attrs.axes))
    others = list(range(rank - len(axes)))
    if others + axes != list(range(rank)):
        raise NotImplementedError("rms_norm has a gradient along the last axes only")
    root = _inverse_root(emit, x, axes, float(call.attrs.epsilon))
    scaled, normed = emit(dy * weight), emit(x * root)
    inner = emit(scaled - normed * op.mean(scaled * normed, axes, keepdims=True))
    by_weight = emit(dy * normed)
    return [root * inner, op.sum(by_weight, others) if others else by_weight]


@legalizes("relax.nn.rms_norm")
def _rms_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x, weight), emit = call.args, partial(lowered, builder)
    rank = len(shape_of(x))
    root = _inverse_root(emit, x, [axis % rank for axis in ints(call.attrs.axes)], float(call.attrs.epsilon))
    return emit(emit(x * root) * weight)


def _inverse_root(emit: Emit, x: relax.Expr, axes: list[int], epsilon: float) -> relax.Var:
    """Compute 1 / sqrt(mean(x^2) + epsilon) over axes, which are kept."""
    square = emit(relax.op.mean(emit(x * x), axes, keepdims=True))
    return emit(relax.op.rsqrt(emit(square + relax.const(epsilon, dtype_of(x)))))


@dataclass(frozen=True)
class _Groups:
    """The axes of a tensor whose channels are split into groups.

    Attributes:
        shape: the tensor's.
        apart: its shape with the channel axis as (groups, channels of a group).
        channel: the channel axis.
        axes: of `apart`, over which mean and variance are.
        epsilon: added to the variance.
    """

    shape: Ints
    apart: Ints
    channel: int
    axes: list[int]
    epsilon: float

    @classmethod
    def of(cls, call: relax.Call) -> _Groups:
        """Read a call of `group_norm`.

        Raises:
            NotImplementedError: it has no scale or no shift.
        """
        attrs, shape = call.attrs, shape_of(call)
        _require_scale_and_shift(call)
        channel = int(attrs.channel_axis) % len(shape)
        groups = int(attrs.num_groups)
        apart = (*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
        spatial = [axis % len(shape) for axis in ints(attrs.axes)]
        axes = sorted([channel + 1, *(axis + (axis > channel) for axis in spatial if axis != channel)])
        return cls(shape, apart, channel, axes, float(attrs.epsilon))

    def per_channel(self, emit: Emit, vector: relax.Expr) -> relax.Var:
        """Reshape a scale or shift to have an axis for each of `apart`."""
        kept = {self.channel, self.channel + 1}
        return emit(relax.op.reshape(vector, [n if axis in kept else 1 for axis, n in enumerate(self.apart)]))

    def mean(self, emit: Emit, value: relax.Expr) -> relax.Var:
        return emit(relax.op.mean(value, self.axes, keepdims=True))

    def normed(self, emit: Emit, x: relax.Expr) -> tuple[relax.Var, relax.Var]:
        """Return `x` in groups, less its mean and divided by its deviation; and 1 / deviation."""
        values = emit(relax.op.reshape(x, self.apart))
        centred = emit(values - self.mean(emit, values))
        variance = self.mean(emit, emit(centred * centred))
        root = emit(relax.op.rsqrt(emit(variance + relax.const(self.epsilon, dtype_of(x)))))
        return emit(centred * root), root


@legalizes("relax.nn.group_norm")
def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x, gamma, beta), groups, emit = call.args, _Groups.of(call), partial(lowered, builder)
    normed, _ = groups.normed(emit, x)
    scaled = emit(normed * groups.per_channel(emit, gamma))
    return relax.op.reshape(emit(scaled + groups.per_channel(emit, beta)), groups.shape)


@differentiates("relax.nn.group_norm")
def _group_norm_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Compute, with x^ = (x - mean) r, g = dy gamma, means over a group: dx = r (g - mean(g) - x^ mean(g x^))."""
    (x, gamma, _), groups, emit, op = call.args, _Groups.of(call), builder.emit, relax.op
    normed, root = groups.normed(emit, x)
    slopes = emit(op.reshape(dy, groups.apart))
    scaled = emit(slopes * groups.per_channel(emit, gamma))
    shared = emit(normed * groups.mean(emit, scaled * normed))
    inner = emit(scaled - groups.mean(emit, scaled) - shared)
    others = [axis for axis in range(len(groups.apart)) if axis not in {groups.channel, groups.channel + 1}]
    sums = [emit(op.sum(value, others)) for value in (slopes * normed, slopes)]
    by_x = op.reshape(emit(root * inner), groups.shape)
    return [by_x, *(op.reshape(value, shape_of(gamma)) for value in sums)]


# Softmax, its logarithm, and layer normalization: kernels that work row by row.


@legalizes("relax.nn.softmax", "relax.nn.log_softmax")
def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    kernel = normalization.softmax if call.op.name == "relax.nn.softmax" else normalization.log_softmax
    return _emit(builder, kernel, *call.args) if _is_last(call) else builtin(builder, call)


@differentiates("relax.nn.softmax", "relax.nn.log_softmax")
def _softmax_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    is_log = call.op.name == "relax.nn.log_softmax"
    if not _is_last(call):
        return (relax_rules.log_softmax_grad if is_log else relax_rules.softmax_grad)(y, call, dy, builder)
    if not is_log:
        return [_emit(builder, normalization.softmax_gradient, y, dy)]
    # Elementwise work in front may be fused, and none behind.
    return [builder.call_te(normalization.log_softmax_gradient, y, dy, primfunc_attrs={"op_pattern": 3})]


@legalizes("relax.nn.layer_norm")
def _layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    operands, rows, epsilon = call.args, _rows(call), float(call.attrs.epsilon)
    if rows == shape_of(call):
        return _emit(builder, normalization.layer_norm, *operands, epsilon)
    flat = _emit(builder, normalization.layer_norm, *_flat(builder, rows, *operands), epsilon)
    return relax.op.reshape(builder.emit(flat), shape_of(call))


@differentiates("relax.nn.layer_norm")
def _layer_norm_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    operands, rows = call.args, _rows(call)
    x, gamma, _ = operands
    if is_whole := rows != shape_of(x):
        x, dy, gamma = _flat(builder, rows, x, dy, gamma)
    gradients = builder.emit(_emit(builder, normalization.layer_norm_gradient, x, gamma, dy, float(call.attrs.epsilon)))
    slopes = [builder.emit(relax.TupleGetItem(gradients, index)) for index in range(3)]
    if is_whole:
        slopes = [relax.op.reshape(slope, shape_of(item)) for slope, item in zip(slopes, operands, strict=True)]
    return slopes


def _rows(call: relax.Call) -> Ints:
    """Return the shape in which a norm is along the last axis only.

    Raises:
        NotImplementedError: it is not along the last axes.
    """
    shape = shape_of(call)
    axes = sorted(axis % len(shape) for axis in ints(call.attrs.axes))
    leading = len(shape) - len(axes)
    if axes != list(range(leading, len(shape))):
        raise NotImplementedError("layer_norm is known along the last axes only")
    return shape if len(axes) == 1 else (*shape[:leading], math.prod(shape[leading:]))


def _flat(builder: relax.BlockBuilder, rows: Ints, *operands: relax.Expr) -> Exprs:
    """Reshape operands to rows, and those of the size of one row to a vector."""
    size = math.prod(rows)
    shapes = [rows if math.prod(shape_of(item)) == size else rows[-1:] for item in operands]
    return [builder.emit(relax.op.reshape(item, shape)) for item, shape in zip(operands, shapes, strict=True)]


def _emit(
    builder: relax.BlockBuilder, function: Callable[..., te.Tensor | list[te.Tensor]], *arguments: relax.Expr | float
) -> relax.Expr:
    return builder.call_te(function, *arguments, primfunc_attrs=OPAQUE)


def _is_last(call: relax.Call) -> bool:
    return int(call.attrs.axis) in {-1, len(shape_of(call)) - 1}


# Products over any axes.


@differentiates("relax.prod")
def _prod(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    """Multiply all other elements: right where some are zero too."""
    (x,), emit, op = call.args, builder.emit, relax.op
    if not is_float(x):
        return [no_grad(x)]
    axes, kept = reduced_axes(call)
    zero, one = relax.const(0.0, dtype_of(x)), relax.const(1.0, dtype_of(x))
    is_zero = emit(op.equal(x, zero))
    zeros = emit(op.sum(op.astype(is_zero, dtype_of(x)), list(axes), keepdims=True))
    rest = emit(op.prod(op.where(is_zero, one, x), list(axes), keepdims=True))
    slope = emit(op.reshape(dy, kept) * rest)
    single, none = (op.where(op.equal(zeros, many), slope, zero) for many in (one, zero))
    return [op.where(is_zero, single, none / op.where(is_zero, one, x))]


# The sum that undoes a broadcast over the last axis: the gradient of a bias.


@legalizes("relax.collapse_sum_to")
def _legalize_bias_sum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    source, result = shape_of(call.args[0]), shape_of(call)
    if len(source) > 1 and result == source[-1:]:
        return builder.call_te(channel_sums.bias_gradient, call.args[0], primfunc_attrs=OPAQUE)
    return builtin(builder, call)
