"""Operators that give values another shape: broadcast, flattened, padded."""

from __future__ import annotations

from tvm import relax, te, tirx, topi
from tvm.relax.op.grad import no_grad

from autotm.lower.operators.rules import (
    Ints,
    builtin,
    differentiates,
    dtype_of,
    fitted,
    ints,
    is_float,
    legalizes,
    number,
    shape_of,
)

_Rules = list[relax.Expr]


@legalizes("relax.broadcast_to")
def _broadcast(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x = call.args[0]
    if (value := number(x)) is not None:
        return builder.call_te(topi.full, shape_of(call), dtype_of(call), value)
    return builtin(builder, call)


@differentiates("relax.broadcast_to")
def _broadcast_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    x, shape = call.args
    return [fitted(dy, x, builder) if is_float(x) else no_grad(x), no_grad(shape)]


@differentiates("relax.collapse_sum_to")
def _collapse(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> _Rules:
    x, shape = call.args
    return [relax.op.broadcast_to(dy, shape_of(x)), no_grad(shape)]


@differentiates("relax.flatten")
@differentiates("relax.nn.batch_flatten")
def _flatten(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> _Rules:
    return [relax.op.reshape(dy, shape_of(call.args[0]))]


@differentiates("relax.tril")
def _tril(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> _Rules:
    return [relax.op.tril(dy, call.args[1]), *map(no_grad, call.args[1:])]


@differentiates("relax.triu")
def _triu(_y: relax.Var, call: relax.Call, dy: relax.Var, _builder: relax.BlockBuilder) -> _Rules:
    return [relax.op.triu(dy, call.args[1]), *map(no_grad, call.args[1:])]


@legalizes("relax.nn.pixel_shuffle")
def _pixel_shuffle_form(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(_shuffled, call.args[0], shape_of(call), int(call.attrs.upscale_factor))


def _shuffled(x: te.Tensor, shape: Ints, factor: int) -> te.Tensor:
    """Squares of pixels made of neighbouring channels, row by row."""
    factor = int(factor)

    def element(*at: tirx.Var) -> tirx.Expr:
        *batch, c, h, w = at
        channel = (c * factor + h % factor) * factor + w % factor
        return x(*batch, channel, h // factor, w // factor)

    return te.compute(tuple(shape), element, name="pixel_shuffle")


@differentiates("relax.nn.pixel_shuffle")
def _pixel_shuffle(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    shape, factor = shape_of(call.args[0]), int(call.attrs.upscale_factor)
    *batch, channels, height, width = shape
    rank, op = len(batch), relax.op
    apart = (*batch, channels // factor**2, height, factor, width, factor)
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    moved = builder.emit(op.permute_dims(builder.emit(op.reshape(dy, apart)), order))
    return [op.reshape(moved, shape)]


@differentiates("relax.meshgrid")
def _meshgrid(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    if str(call.attrs.indexing) != "ij":
        raise NotImplementedError("meshgrid has a gradient here with indexing 'ij' only")
    parts = list(call.args[0])
    slopes = []
    for axis, part in enumerate(parts):
        slope = builder.emit(relax.TupleGetItem(dy, axis))
        others = [other for other in range(len(parts)) if other != axis]
        slopes.append(builder.emit(relax.op.sum(slope, others)) if is_float(part) else no_grad(part))
    return [relax.Tuple(slopes)]


@differentiates("relax.outer")
def _outer(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    (a, b), emit, op = call.args, builder.emit, relax.op
    column = emit(op.reshape(a, (shape_of(a)[0], 1)))
    return [op.sum(emit(op.multiply(dy, b)), 1), op.sum(emit(op.multiply(dy, column)), 0)]


@differentiates("relax.nn.pad")
def _pad(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
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
    """The gradient along one axis: each position's, and that of its copies in the padding."""
    extent, before, after = int(extent), int(before), int(after)
    shape = [*dy.shape[:axis], extent, *dy.shape[axis + 1 :]]
    if mode == "replicate":
        copies = te.reduce_axis((0, max(before, after) + 1), "copy")

        def edge(*at: tirx.Var) -> tirx.Expr:
            i, zero = at[axis], tirx.const(0.0, dy.dtype)

            def value(position: tirx.Expr, is_there: tirx.Expr) -> tirx.Expr:
                inside = tirx.max(tirx.min(position, extent + before + after - 1), 0)
                return tirx.Select(is_there, dy(*at[:axis], inside, *at[axis + 1 :]), zero)

            first = value(before - copies, tirx.all(i == 0, copies <= before, copies > 0))
            last = value(before + extent - 1 + copies, tirx.all(i == extent - 1, copies <= after, copies > 0))
            return te.sum(value(before + i, copies == 0) + first + last, axis=copies)

        return te.compute(shape, edge, name="pad_gradient")

    def element(*at: tirx.Var) -> tirx.Expr:
        i, zero = at[axis], tirx.const(0.0, dy.dtype)

        def value(position: tirx.Expr, is_there: tirx.Expr) -> tirx.Expr:
            inside = tirx.max(tirx.min(position, extent + before + after - 1), 0)
            return tirx.Select(is_there, dy(*at[:axis], inside, *at[axis + 1 :]), zero)

        total = dy(*at[:axis], before + i, *at[axis + 1 :])
        if mode == "reflect":
            total = total + value(before - i, tirx.all(i > 0, i <= before))
            last = before + 2 * (extent - 1) - i
            return total + value(last, tirx.all(i < extent - 1, i >= extent - 1 - after))
        total = total + value(before + i - extent, i >= extent - before)
        return total + value(before + i + extent, i < after)

    return te.compute(shape, element, name="pad_gradient")
