"""Rules of operators that only move values or give them another shape, and of the largest and smallest of values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.relax.op.grad import no_grad

from autotm.kernels import along_axis
from autotm.kernels.tables import call_embedding_concat
from autotm.lower.indexing import lookup_behind
from autotm.lower.pointwise import extreme
from autotm.lower.rules import (
    Exprs,
    Gradient,
    Ints,
    builtin,
    differentiates,
    dtype_of,
    fitted,
    ints,
    is_float,
    legalizes,
    number,
    reduced_axes,
    shape_of,
)

# Operators that only move values: the gradient goes back where the value came from.


_LINEAR: dict[str, Callable[[relax.Call, relax.Var], relax.Expr]] = {
    **dict.fromkeys(("squeeze", "flatten"), lambda call, dy: relax.op.reshape(dy, shape_of(call.args[0]))),
    "collapse_sum_to": lambda call, dy: relax.op.broadcast_to(dy, shape_of(call.args[0])),
    "flip": lambda call, dy: relax.op.flip(dy, int(call.attrs.axis)),
    "tril": lambda call, dy: relax.op.tril(dy, call.args[1]),
    "triu": lambda call, dy: relax.op.triu(dy, call.args[1]),
}
"""Gradients by the first operand; the others, shapes and offsets, have none."""


def _linear(gradient: Callable[[relax.Call, relax.Var], relax.Expr]) -> Gradient:
    return lambda _y, call, dy, _builder: [gradient(call, dy), *map(no_grad, call.args[1:])]


for _name, _gradient in _LINEAR.items():
    differentiates(f"relax.{_name}")(_linear(_gradient))


@differentiates("relax.strided_slice")
def _slice(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
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
    """Put a gradient among zeros at the positions that a slice took: from `firsts` on, `steps` apart."""

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
def _stack(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    parts = list(call.args[0])
    axis = int(call.attrs.axis) % len(shape_of(dy))
    taken = [builder.emit(relax.op.strided_slice(dy, [axis], [k], [k + 1])) for k in range(len(parts))]
    return [relax.Tuple([builder.emit(relax.op.squeeze(part, [axis])) for part in taken])]


@differentiates("relax.tile")
def _tile(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> Exprs:
    own, times = shape_of(call.args[0]), ints(call.attrs.repeats)
    rank = max(len(own), len(times))
    shape, times = (1,) * (rank - len(own)) + own, (1,) * (rank - len(times)) + times
    apart = [extent for pair in zip(times, shape, strict=True) for extent in pair]
    return [relax.op.reshape(relax.op.sum(relax.op.reshape(dy, apart), list(range(0, 2 * rank, 2))), own)]


# Operators that give values another shape: broadcast, flattened, padded.


@legalizes("relax.broadcast_to")
def _broadcast(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x = call.args[0]
    if (value := number(x)) is not None:
        return builder.call_te(topi.full, shape_of(call), dtype_of(call), value)
    return builtin(builder, call)


@differentiates("relax.broadcast_to")
def _broadcast_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    x, shape = call.args
    return [fitted(dy, x, builder) if is_float(x) else no_grad(x), no_grad(shape)]


@differentiates("relax.nn.pad")
def _pad(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    mode, shape, widths = str(call.attrs.pad_mode), shape_of(call.args[0]), ints(call.attrs.pad_width)
    before, after = widths[::2], widths[1::2]
    if mode == "constant":
        ends = [first + extent for first, extent in zip(before, shape, strict=True)]
        return [relax.op.strided_slice(dy, list(range(len(before))), list(before), ends)]
    if mode not in _COPIES:
        raise NotImplementedError(f"pad has a gradient here in modes constant and {', '.join(_COPIES)}, not in {mode}")
    for axis, extent in enumerate(shape):
        if before[axis] or after[axis]:
            dy = builder.emit(builder.call_te(_folded, dy, axis, extent, before[axis], after[axis], mode))
    return [dy]


_COPIES = ("reflect", "replicate", "circular")


def _folded(dy: te.Tensor, axis: int, extent: int, before: int, after: int, mode: str) -> te.Tensor:
    """Add along one axis the gradients of each position's copies in the padding to the position's own."""
    extent, before, after = int(extent), int(before), int(after)
    shape, zero = [*dy.shape[:axis], extent, *dy.shape[axis + 1 :]], tirx.const(0.0, dy.dtype)

    def value(at: tuple[tirx.Var, ...], position: tirx.Expr, is_there: tirx.Expr) -> tirx.Expr:
        inside = tirx.max(tirx.min(position, extent + before + after - 1), 0)
        return tirx.Select(is_there, dy(*at[:axis], inside, *at[axis + 1 :]), zero)

    copies = te.reduce_axis((0, max(before, after) + 1), "copy")

    def edge(*at: tirx.Var) -> tirx.Expr:
        i = at[axis]
        first = value(at, before - copies, tirx.all(i == 0, copies <= before, copies > 0))
        last = value(at, before + extent - 1 + copies, tirx.all(i == extent - 1, copies <= after, copies > 0))
        return te.sum(value(at, before + i, copies == 0) + first + last, axis=copies)

    def element(*at: tirx.Var) -> tirx.Expr:
        i = at[axis]
        total = dy(*at[:axis], before + i, *at[axis + 1 :])
        if mode == "reflect":
            total = total + value(at, before - i, tirx.all(i > 0, i <= before))
            last = before + 2 * (extent - 1) - i
            return total + value(at, last, tirx.all(i < extent - 1, i >= extent - 1 - after))
        total = total + value(at, before + i - extent, i >= extent - before)
        return total + value(at, before + i + extent, i < after)

    return te.compute(shape, edge if mode == "replicate" else element, name="pad_gradient")


# Concatenation and views.

_MATRIX = 2  # axes


@legalizes("relax.concat")
def _legalize_concat(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    parts, axis = list(call.args[0]), int(call.attrs.axis)
    if len(shape_of(parts[0])) == _MATRIX and axis % _MATRIX == 1:
        lookups = [lookup_behind(builder, part) for part in parts]
        if any(lookups):
            sources = [lookup or (part,) for lookup, part in zip(lookups, parts, strict=True)]
            return call_embedding_concat(builder, sources)
    return builder.call_te(lambda *tensors: along_axis.concat(tensors, axis), *parts, primfunc_name_hint="concat")


@differentiates("relax.concat")
def _concat_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    # Slices fuse with the masks and additions behind them; the built-in split does not.
    axis = int(call.attrs.axis)
    gradients, start = [], 0
    for part in call.args[0]:
        end = start + shape_of(part)[axis]
        gradients.append(builder.emit(relax.op.strided_slice(dy, [axis], [start], [end])))
        start = end
    return [relax.Tuple(gradients)]


@legalizes("relax.reshape")
def _legalize_reshape(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # A reshape moves nothing: it stays an operator, and becomes a view of the same tensor in the graph.
    return call


# The largest or smallest value along some axes.


@legalizes("relax.max", "relax.min")
def _reduced(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax's own give the other number where one is NaN, and a finite one where all are infinite.
    if not is_float(call):
        return builtin(builder, call)
    shape, is_largest = shape_of(call.args[0]), call.op.name == "relax.max"
    over, _ = reduced_axes(call)

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
    """Return a maximum or minimum in which NaN stays and infinities count; the schedules that share sums know it."""

    def combined(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return extreme(a, b, is_largest)

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


@differentiates("relax.max", "relax.min")
def _extremum(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    # Values that are equally extreme share the gradient, as in PyTorch's amax and amin.
    x = call.args[0]
    axes, kept = reduced_axes(call)
    whole, slope = (builder.emit(relax.op.reshape(item, kept)) for item in (y, dy))
    is_extreme = builder.emit(relax.op.astype(relax.op.equal(x, whole), x.ty.dtype))
    return [is_extreme * (slope / relax.op.sum(is_extreme, sorted(axes), keepdims=True))]
