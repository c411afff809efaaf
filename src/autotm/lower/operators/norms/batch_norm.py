"""Batch norm: in training, the statistics are the batch's own, and the gradient reuses them; else given ones.

In training, the second result is the batch's mean and the third 1 / sqrt(variance + epsilon), which is what the other
kernels need, whatever the momentum. A network that keeps running averages makes them of these two
(`kernels.operators.batch_norm.running_averages`), as those from PyTorch do; the original's networks keep none.
"""

from __future__ import annotations

import math

from tvm import relax, te, tirx, topi

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import batch_norm
from autotm.lower.operators.rules import differentiates, dtype_of, legalizes, shape_of


@legalizes("relax.nn.batch_norm")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, *_, mean, variance = call.args
    gamma, beta = _scale_and_shift(builder, call)
    epsilon = float(call.attrs.epsilon)
    if not call.attrs.training:
        y = builder.emit(builder.call_te(_normalise, x, gamma, beta, mean, variance, epsilon, _axis(call)))
        return relax.Tuple([y, mean, variance])
    rows = _last(builder, call, x)
    moments = builder.emit(builder.call_te(batch_norm.statistics, rows, epsilon, primfunc_attrs=OPAQUE))
    mean, inverse = (builder.emit(relax.TupleGetItem(moments, index)) for index in range(2))
    y = builder.emit(builder.call_te(batch_norm.normalise, rows, gamma, beta, mean, inverse))
    return relax.Tuple([_back(builder, call, y), mean, inverse])


@differentiates("relax.nn.batch_norm")
def _gradient(
    results: relax.Var, call: relax.Call, slopes: relax.Expr, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    x, _gamma, _beta, *running = call.args
    gamma, _ = _scale_and_shift(builder, call)
    dy = builder.emit(relax.TupleGetItem(slopes, 0))
    still = [relax.op.zeros(shape_of(average), dtype_of(average)) for average in running]
    if not call.attrs.training:
        return [*_frozen_gradient(builder, call, dy), *still]
    mean, inverse = (builder.emit(relax.TupleGetItem(results, index)) for index in (1, 2))
    x, dy = _last(builder, call, x), _last(builder, call, dy)
    sums = builder.emit(builder.call_te(batch_norm.gradient_sums, dy, x, mean, inverse, primfunc_attrs=OPAQUE))
    dgamma, dbeta = (builder.emit(relax.TupleGetItem(sums, index)) for index in range(2))
    dx = builder.call_te(batch_norm.data_gradient, dy, x, gamma, mean, inverse, dgamma, dbeta)
    return [_back(builder, call, dx), dgamma, dbeta, *still]


def _frozen_gradient(builder: relax.BlockBuilder, call: relax.Call, dy: relax.Var) -> list[relax.Expr]:
    """By data, scale and shift, mean and variance being given."""
    (x, *_, mean, variance), emit, op, axis = call.args, builder.emit, relax.op, _axis(call)
    gamma, _ = _scale_and_shift(builder, call)
    along = [1] * len(shape_of(x))
    along[axis] = shape_of(x)[axis]
    others = [other for other in range(len(along)) if other != axis]
    shifted = emit(op.add(variance, relax.const(float(call.attrs.epsilon), dtype_of(x))))
    inverse = emit(op.rsqrt(shifted))
    factor = emit(op.reshape(emit(op.multiply(gamma, inverse)), along))
    centred = emit(op.subtract(x, emit(op.reshape(mean, along))))
    products = emit(op.sum(emit(op.multiply(dy, centred)), others))
    return [op.multiply(dy, factor), op.multiply(products, inverse), op.sum(dy, others)]


def _normalise(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, mean: te.Tensor, variance: te.Tensor, epsilon: float, axis: int
) -> te.Tensor:
    def element(*at: tirx.Var) -> tirx.Expr:
        c = at[axis]
        deviation = tirx.sqrt(variance[c] + tirx.const(epsilon, x.dtype))
        return (x(*at) - mean[c]) * (gamma[c] / deviation) + beta[c]

    return te.compute(x.shape, element, name="frozen_batch_norm")


def _scale_and_shift(builder: relax.BlockBuilder, call: relax.Call) -> list[relax.Expr]:
    """The second and third operands, or ones and zeros where they do not count."""
    _, gamma, beta, *_ = call.args
    given = ((gamma, bool(call.attrs.scale), 1.0), (beta, bool(call.attrs.center), 0.0))
    return [
        item if counts else builder.emit(builder.call_te(topi.full, shape_of(item), dtype_of(item), value))
        for item, counts, value in given
    ]


def _axis(call: relax.Call) -> int:
    return int(call.attrs.axis) % len(shape_of(call.args[0]))


def _last(builder: relax.BlockBuilder, call: relax.Call, x: relax.Expr) -> relax.Expr:
    """`x` with its channels last."""
    shape, axis = shape_of(x), _axis(call)
    if math.prod(shape[axis + 1 :]) == 1:
        return x if axis == len(shape) - 1 else builder.emit(relax.op.reshape(x, shape[: axis + 1]))
    order = [other for other in range(len(shape)) if other != axis]
    return builder.emit(builder.call_te(topi.transpose, x, [*order, axis]))


def _back(builder: relax.BlockBuilder, call: relax.Call, y: relax.Expr) -> relax.Expr:
    """What has its channels last, as the operator's data."""
    shape, axis = shape_of(call.args[0]), _axis(call)
    if math.prod(shape[axis + 1 :]) == 1:
        return y if axis == len(shape) - 1 else builder.emit(relax.op.reshape(builder.emit(y), shape))
    order = list(range(len(shape) - 1))
    order.insert(axis, len(shape) - 1)
    return builder.emit(builder.call_te(topi.transpose, builder.emit(y), order))
