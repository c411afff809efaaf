"""Batch norm in training mode over the last axis: the statistics are the batch's own, and the gradient reuses them.

As the networks use the operator (momentum 1, no running averages before), its second and third results are the
batch's mean and variance. Here the third is 1 / sqrt(variance + epsilon) instead, which is what the other kernels
need. Running averages are no part of the step, as in the original.
"""

from __future__ import annotations

from tvm import relax

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import batch_norm
from autotm.lower.operators.rules import differentiates, legalizes, shape_of


@legalizes("relax.nn.batch_norm")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    _check(call)
    x, gamma, beta, *_ = call.args
    epsilon = float(call.attrs.epsilon)
    moments = builder.emit(builder.call_te(batch_norm.statistics, x, epsilon, primfunc_attrs=OPAQUE))
    mean, inverse = (builder.emit(relax.TupleGetItem(moments, index)) for index in range(2))
    y = builder.emit(builder.call_te(batch_norm.normalise, x, gamma, beta, mean, inverse))
    return relax.Tuple([y, mean, inverse])


@differentiates("relax.nn.batch_norm")
def _gradient(
    results: relax.Var, call: relax.Call, slopes: relax.Expr, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    _check(call)
    x, gamma, _beta, *running = call.args
    mean, inverse = (builder.emit(relax.TupleGetItem(results, index)) for index in (1, 2))
    dy = builder.emit(relax.TupleGetItem(slopes, 0))
    sums = builder.emit(builder.call_te(batch_norm.gradient_sums, dy, x, mean, inverse, primfunc_attrs=OPAQUE))
    dgamma, dbeta = (builder.emit(relax.TupleGetItem(sums, index)) for index in range(2))
    dx = builder.call_te(batch_norm.data_gradient, dy, x, gamma, mean, inverse, dgamma, dbeta)
    return [dx, dgamma, dbeta, *(relax.op.zeros(shape_of(average), "float32") for average in running)]


def _check(call: relax.Call) -> None:
    """Refuse what the kernels do not compute.

    Raises:
        NotImplementedError: not in training mode, without scale or shift, not over the last axis, or momentum below 1.
    """
    attrs = call.attrs
    last = int(attrs.axis) in (-1, len(shape_of(call.args[0])) - 1)
    if not (attrs.training and attrs.center and attrs.scale and last and float(attrs.momentum) == 1.0):
        raise NotImplementedError(f"batch norm other than for training, over the last axis, with momentum 1: {attrs}")
