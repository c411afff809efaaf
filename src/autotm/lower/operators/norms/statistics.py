"""Gradients of sums and of what is computed of deviations, over any axes."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import Ints, differentiates, dtype_of, ints, is_float, shape_of


@differentiates("relax.std")
def _std(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """The variance's, by the chain rule: dx = dy (x - mean) / (n y)."""
    (x,), emit, op = call.args, builder.emit, relax.op
    axes, kept = _reduced(call)
    centred = emit(op.subtract(x, emit(op.mean(x, list(axes), keepdims=True))))
    count = relax.const(float(math.prod(shape_of(x)[axis] for axis in axes)), dtype_of(x))
    slope = emit(op.divide(dy, emit(op.multiply(y, count))))
    return [op.multiply(emit(op.reshape(slope, kept)), centred)]


@differentiates("relax.prod")
def _prod(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """The product of all others, which is right where some are zero too."""
    (x,), emit, op = call.args, builder.emit, relax.op
    if not is_float(x):
        return [no_grad(x)]
    axes, kept = _reduced(call)
    zero, one = relax.const(0.0, dtype_of(x)), relax.const(1.0, dtype_of(x))
    is_zero = emit(op.equal(x, zero))
    zeros = emit(op.sum(emit(op.astype(is_zero, dtype_of(x))), list(axes), keepdims=True))
    rest = emit(op.prod(emit(op.where(is_zero, one, x)), list(axes), keepdims=True))
    slope = emit(op.multiply(emit(op.reshape(dy, kept)), rest))
    single = emit(op.where(emit(op.equal(zeros, one)), slope, zero))
    none = emit(op.where(emit(op.equal(zeros, zero)), slope, zero))
    return [op.where(is_zero, single, emit(op.divide(none, emit(op.where(is_zero, one, x)))))]


def _reduced(call: relax.Call) -> tuple[Ints, Ints]:
    """The reduced axes, and the operand's shape with one entry along them."""
    shape, axes = shape_of(call.args[0]), call.attrs.axis
    found = tuple(axis % len(shape) for axis in ints(axes)) if axes is not None else tuple(range(len(shape)))
    return found, tuple(1 if axis in found else extent for axis, extent in enumerate(shape))
