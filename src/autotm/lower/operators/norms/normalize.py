"""Softmax, its logarithm, and layer normalization: kernels that work row by row."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, te
from tvm.relax.op import _op_gradient as relax_rules

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import layer_norm, softmax
from autotm.lower.operators.rules import Ints, builtin, differentiates, ints, legalizes, lowered, shape_of

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
    x, gamma, beta = call.args
    epsilon = float(call.attrs.epsilon)
    rows = _rows(call)
    if rows is None:
        return _over_axes(builder, call)
    if rows == shape_of(x):
        return _emit(builder, layer_norm.layer_norm, x, gamma, beta, epsilon)
    x, gamma, beta = _flat(builder, rows, x, gamma, beta)
    made = builder.emit(_emit(builder, layer_norm.layer_norm, x, gamma, beta, epsilon))
    return relax.op.reshape(made, shape_of(call))


@differentiates("relax.nn.layer_norm")
def _layer_norm_gradient(
    _y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder
) -> list[relax.Expr]:
    operands, rows = call.args, _rows(call)
    if rows is None:
        message = "layer_norm has a gradient along the last axes only"
        raise NotImplementedError(message)
    x, gamma, _ = operands
    if is_whole := rows != shape_of(x):
        x, dy, gamma = _flat(builder, rows, x, dy, gamma)
    found = builder.emit(_emit(builder, layer_norm.layer_norm_gradient, x, gamma, dy, float(call.attrs.epsilon)))
    slopes = [builder.emit(relax.TupleGetItem(found, index)) for index in range(3)]
    if is_whole:
        slopes = [relax.op.reshape(slope, shape_of(item)) for slope, item in zip(slopes, operands, strict=True)]
    return slopes


def _rows(call: relax.Call) -> Ints | None:
    """The shape in which it is along the last axis only; None if it is not along the last axes."""
    shape = shape_of(call)
    axes = sorted(axis % len(shape) for axis in ints(call.attrs.axes))
    leading = len(shape) - len(axes)
    if axes != list(range(leading, len(shape))):
        return None
    return shape if len(axes) == 1 else (*shape[:leading], math.prod(shape[leading:]))


def _flat(builder: relax.BlockBuilder, rows: Ints, *operands: relax.Expr) -> list[relax.Expr]:
    """The operands with as many last axes put together; vectors and tensors alike."""
    size = math.prod(rows)
    shapes = [rows if math.prod(shape_of(item)) == size else rows[-1:] for item in operands]
    return [builder.emit(relax.op.reshape(item, shape)) for item, shape in zip(operands, shapes, strict=True)]


def _over_axes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Along axes that are not the last: those are put last, and back."""
    (x, gamma, beta), shape, op = call.args, shape_of(call), relax.op
    axes = [axis % len(shape) for axis in ints(call.attrs.axes)]
    order = [axis for axis in range(len(shape)) if axis not in axes] + axes
    moved = lowered(builder, op.permute_dims(x, order))
    last = list(range(-len(axes), 0))
    made = lowered(builder, op.nn.layer_norm(moved, gamma, beta, last, float(call.attrs.epsilon)))
    return lowered(builder, op.permute_dims(made, [order.index(axis) for axis in range(len(shape))]))


def _emit(
    builder: relax.BlockBuilder, function: Callable[..., te.Tensor | list[te.Tensor]], *arguments: relax.Expr | float
) -> relax.Expr:
    return builder.call_te(function, *arguments, primfunc_attrs=OPAQUE)


def _is_last(call: relax.Call) -> bool:
    return int(call.attrs.axis) in {-1, len(shape_of(call)) - 1}
