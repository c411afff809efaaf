"""Operators that only move values: the gradient goes back where the value came from."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import Ints, builtin, differentiates, ints, is_float, legalizes, shape_of


@differentiates("relax.squeeze")
def _squeeze(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> list[relax.Expr]:
    return [relax.op.reshape(dy, shape_of(call.args[0]))]


@differentiates("relax.flip")
def _flip(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> list[relax.Expr]:
    return [relax.op.flip(dy, int(call.attrs.axis))]


@differentiates("relax.strided_slice")
def _slice(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    shape = shape_of(call.args[0])
    axes, begins, _, *rest = (ints(argument) for argument in call.args[1:])
    axes, strides = tuple(axis % len(shape) for axis in axes), rest[0] if rest else (1,) * len(axes)
    if min(strides, default=1) < 1:
        raise NotImplementedError("strided_slice has a gradient here for positive strides only; use flip to turn round")
    firsts, steps = [0] * len(shape), [1] * len(shape)
    for axis, begin, stride in zip(axes, begins, strides, strict=True):
        firsts[axis] = min(max(begin + shape[axis] if begin < 0 else begin, 0), shape[axis])
        steps[axis] = stride
    return [builder.call_te(_put_back, dy, shape, firsts, steps), *map(no_grad, call.args[1:])]


def _put_back(dy: te.Tensor, shape: Ints, firsts: Ints, steps: Ints) -> te.Tensor:
    """Zeros of a shape, but for the positions that a slice took: from `firsts` on, `steps` apart."""

    def element(*at: tirx.Var) -> tirx.Expr:
        taken, places = [], []
        for position, extent, taken_extent, first, step in zip(at, shape, dy.shape, firsts, steps, strict=True):
            offset = position - int(first)
            if int(taken_extent) < int(extent):
                taken += [offset >= 0, offset < taken_extent * int(step)]
                taken += [tirx.floormod(offset, int(step)) == 0] if int(step) > 1 else []
            places.append(tirx.floordiv(offset, int(step)))
        zero = tirx.const(0.0, dy.dtype)
        return tirx.if_then_else(tirx.all(*taken), dy(*places), zero) if taken else dy(*places)

    return te.compute(shape, element, name="strided_slice_gradient")


@differentiates("relax.stack")
def _stack(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    parts = list(call.args[0])
    axis = int(call.attrs.axis) % len(shape_of(dy))
    taken = [builder.emit(relax.op.strided_slice(dy, [axis], [k], [k + 1])) for k in range(len(parts))]
    return [relax.Tuple([builder.emit(relax.op.squeeze(part, [axis])) for part in taken])]


@differentiates("relax.repeat")
def _repeat(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    shape, times = shape_of(call.args[0]), int(call.attrs.repeats)
    if call.attrs.axis is None:
        raise NotImplementedError("repeat has a gradient here along an axis only; reshape to one axis first")
    axis = int(call.attrs.axis) % len(shape)
    apart = builder.emit(relax.op.reshape(dy, (*shape[: axis + 1], times, *shape[axis + 1 :])))
    return [relax.op.sum(apart, axis + 1)]


@differentiates("relax.tile")
def _tile(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    own, times = shape_of(call.args[0]), ints(call.attrs.repeats)
    rank = max(len(own), len(times))
    shape, times = (1,) * (rank - len(own)) + own, (1,) * (rank - len(times)) + times
    apart = [extent for pair in zip(times, shape, strict=True) for extent in pair]
    summed = builder.emit(relax.op.sum(builder.emit(relax.op.reshape(dy, apart)), list(range(0, 2 * rank, 2))))
    return [relax.op.reshape(summed, own)]


@legalizes("relax.max")
@legalizes("relax.min")
def _reduced(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax's own give the other number where one is NaN, and a finite one where all are infinite.
    if not is_float(call):
        return builtin(builder, call)
    shape, is_largest = shape_of(call.args[0]), call.op.name == "relax.max"
    axes = call.attrs.axis
    over = {axis % len(shape) for axis in ints(axes)} if axes is not None else set(range(len(shape)))

    def reduced(x: te.Tensor) -> te.Tensor:
        terms = {axis: te.reduce_axis((0, shape[axis])) for axis in sorted(over)}

        def element(*at: tirx.Var) -> tirx.Expr:
            left = iter(at)
            if call.attrs.keepdims:
                index = [terms.get(axis, item) for axis, item in enumerate(at)]
            else:
                index = [terms[axis] if axis in terms else next(left) for axis in range(len(shape))]
            return _REDUCERS[is_largest](x(*index), list(terms.values()))

        return te.compute(shape_of(call), element, name="max" if is_largest else "min")

    return builder.call_te(reduced, call.args[0])


def _reducer(is_largest: bool) -> Callable[..., tirx.Expr]:
    """A maximum or minimum in which NaN stays and infinities count; known to the schedules that share sums."""

    def combined(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        # A comparison with NaN is false, which chooses `b`.
        return tirx.Select(tirx.any(a > b if is_largest else a < b, tirx.isnan(a)), a, b)

    def least(dtype: str) -> tirx.Expr:
        infinity = tirx.infinity(dtype)
        return tirx.const(0, dtype) - infinity if is_largest else infinity

    known = [
        tvm_ffi.convert(lambda some, others: [combined(*some, *others)]),
        tvm_ffi.convert(lambda values: [least(str(values[0].ty.dtype))]),
    ]
    for function in known:
        # TVM frees what it registered after Python has ended, which it would call for that: kept for good.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    tvm.get_global_func("s_tir.schedule.RegisterReducer")(1, *known)
    return te.comm_reducer(combined, least, name="max" if is_largest else "min")


_REDUCERS = {is_largest: _reducer(is_largest) for is_largest in (True, False)}


@differentiates("relax.max")
@differentiates("relax.min")
def _extremum(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # Values that are equally extreme share the gradient, as in PyTorch's amax and amin.
    x = call.args[0]
    shape, axes = shape_of(x), call.attrs.axis
    reduced = {axis % len(shape) for axis in ints(axes)} if axes is not None else set(range(len(shape)))
    kept = tuple(1 if axis in reduced else extent for axis, extent in enumerate(shape))
    whole, slope = (builder.emit(relax.op.reshape(item, kept)) for item in (y, dy))
    is_extreme = builder.emit(relax.op.astype(builder.emit(relax.op.equal(x, whole)), x.ty.dtype))
    count = builder.emit(relax.op.sum(is_extreme, sorted(reduced), keepdims=True))
    return [relax.op.multiply(is_extreme, builder.emit(relax.op.divide(slope, count)))]
