"""Values read from, or written to, places that indices name: their gradient goes back to these places."""

from __future__ import annotations

import math

from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import Scatter, embedding, scatter_sum
from autotm.lower.operators.rules import Ints, differentiates, legalizes, shape_of

_FEW = 4
"""Entries along an axis up to which each place asks all of them: that fuses, and shares out well."""
_Rules = list[relax.Expr]


def call_scatter_sum(
    builder: relax.BlockBuilder, dy: relax.Expr, indices: list[relax.Expr], shape: Ints, scatter: Scatter
) -> relax.Expr:
    """A call of the kernel that adds up `dy` at the places of `shape`."""
    return builder.call_te(
        lambda slope, *places: scatter_sum(slope, places, shape, scatter),
        dy,
        *indices,
        primfunc_name_hint="scatter_sum",
        primfunc_attrs=OPAQUE,
    )


@legalizes("relax.grad.take_backward")
def _take_backward(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dy, x, indices = call.args
    shape = shape_of(x)
    if call.attrs.axis is None:
        shape, axis = (math.prod(shape),), 0
    else:
        axis = int(call.attrs.axis) % len(shape)
    places = shape_of(indices)
    if len(places) != 1:
        indices = builder.emit(relax.op.reshape(indices, (math.prod(places),)))
    scatter = Scatter.of_axis(shape_of(dy), shape, axis, places)
    return call_scatter_sum(builder, dy, [indices], shape_of(x), scatter)


@legalizes("relax.gather_elements")
def _read_each(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax reads past the tensor where an index is negative or too large.
    x, indices = call.args
    return builder.call_te(_gathered, x, indices, int(call.attrs.axis) % len(shape_of(x)))


def _gathered(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    def element(*at: tirx.Var) -> tirx.Expr:
        index = _counted(indices(*at), int(x.shape[axis]), indices.dtype)
        return x(*at[:axis], embedding.nearest(index, x.shape[axis]), *at[axis + 1 :])

    return te.compute(indices.shape, element, name="gather_elements")


@differentiates("relax.gather_elements")
def _gather(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    x, indices = call.args
    axis = int(call.attrs.axis) % len(shape_of(x))
    return [to_places(builder, dy, indices, shape_of(x), axis), no_grad(indices)]


def to_places(builder: relax.BlockBuilder, dy: relax.Expr, indices: relax.Expr, shape: Ints, axis: int) -> relax.Expr:
    """`dy` added up along `axis` at places with an index for each element: the gradient of a gather from `shape`."""
    own = shape_of(dy)
    is_aligned = all(own[other] == shape[other] for other in range(len(own)) if other != axis)
    if own[axis] <= _FEW or not is_aligned:
        return builder.call_te(_sum_gathered, dy, indices, shape, axis)
    return call_scatter_sum(builder, dy, [indices], shape, Scatter.of_elements(own, shape, axis))


def _sum_gathered(dy: te.Tensor, indices: te.Tensor, shape: Ints, axis: int) -> te.Tensor:
    """At each position, the sum over the entries along an axis that were gathered from there."""
    if int(dy.shape[axis]) == 1:
        return _put_gathered(dy, indices, shape, axis)
    entry = te.reduce_axis((0, dy.shape[axis]), "entry")

    def element(*at: tirx.Var) -> tirx.Expr:
        place = [*at[:axis], entry, *at[axis + 1 :]]
        others = [other for other in range(len(at)) if other != axis and int(dy.shape[other]) < int(shape[other])]
        is_inside = [at[other] < dy.shape[other] for other in others]
        is_here = _counted(indices(*place), shape[axis], indices.dtype) == tirx.Cast(indices.dtype, at[axis])
        zero = tirx.const(0.0, dy.dtype)
        return te.sum(tirx.if_then_else(tirx.all(*is_inside, is_here), dy(*place), zero), axis=entry)

    return te.compute(tuple(shape), element, name="gather_elements_gradient")


def _put_gathered(dy: te.Tensor, indices: te.Tensor, shape: Ints, axis: int) -> te.Tensor:
    """Where one entry was gathered: no sum, so that it fuses with what follows."""
    others = [other for other in range(len(shape)) if other != axis and int(dy.shape[other]) < int(shape[other])]

    def element(*at: tirx.Var) -> tirx.Expr:
        place = [*at[:axis], 0, *at[axis + 1 :]]
        is_here = _counted(indices(*place), shape[axis], indices.dtype) == tirx.Cast(indices.dtype, at[axis])
        is_inside = [at[other] < dy.shape[other] for other in others]
        value, zero = dy(*place), tirx.const(0.0, dy.dtype)
        if others:
            return tirx.if_then_else(tirx.all(*is_inside, is_here), value, zero)
        return tirx.Select(is_here, value, zero)

    return te.compute(tuple(shape), element, name="gather_elements_gradient")


def _counted(index: tirx.Expr, extent: int, dtype: str) -> tirx.Expr:
    """An index, from the end where it is negative."""
    return tirx.Select(index < 0, index + tirx.const(int(extent), dtype), index)


@legalizes("relax.index_tensor")
def _read(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # Relax reads past the tensor where an index is negative.
    x, indices = call.args
    return builder.call_te(_indexed, x, list(indices), shape_of(call))


def _indexed(x: te.Tensor, indices: list[te.Tensor], shape: Ints) -> te.Tensor:
    rank = len(shape) - len(x.shape) + len(indices)

    def element(*at: tirx.Var) -> tirx.Expr:
        values = [_value(index, list(at[:rank]), x.shape[axis]) for axis, index in enumerate(indices)]
        return x(*values, *at[rank:])

    return te.compute(tuple(shape), element, name="index_tensor")


def _value(index: te.Tensor, entries: list[tirx.Var], extent: tirx.Expr) -> tirx.Expr:
    """The index at an entry of the broadcast indices, from the end where it is negative, or the nearest to it."""
    lead = len(entries) - len(index.shape)
    value = index(*(0 if int(own) == 1 else entry for own, entry in zip(index.shape, entries[lead:], strict=True)))
    return embedding.nearest(_counted(value, int(extent), index.dtype), extent)


@differentiates("relax.index_tensor")
def _index(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    x, indices = call.args[0], list(call.args[1])
    scatter = Scatter.of_places(shape_of(x), [shape_of(index) for index in indices])
    flat = [_with_axes(builder, index) for index in indices]
    found = call_scatter_sum(builder, dy, flat, shape_of(x), scatter)
    return [found, relax.Tuple([*map(no_grad, indices)])]


def _with_axes(builder: relax.BlockBuilder, index: relax.Expr) -> relax.Expr:
    return index if shape_of(index) else builder.emit(relax.op.reshape(index, (1,)))


@differentiates("relax.gather_nd")
def _gather_nd(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    x, indices = call.args
    if int(call.attrs.batch_dims):
        raise NotImplementedError("gather_nd has a gradient here without batch dimensions only")
    *shape, count = shape_of(indices)
    parts = [builder.emit(builder.call_te(_part, indices, place)) for place in range(count)]
    scatter = Scatter.of_places(shape_of(x), [tuple(shape)] * count)
    flat = [_with_axes(builder, part) for part in parts]
    return [call_scatter_sum(builder, dy, flat, shape_of(x), scatter), no_grad(indices)]


def _part(indices: te.Tensor, place: int) -> te.Tensor:
    return te.compute(indices.shape[:-1], lambda *at: indices(*at, place), name="index")


@differentiates("relax.scatter_elements")
def _scatter_elements(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    _, indices, updates = call.args
    axis, op = int(call.attrs.axis), relax.op
    kept = dy
    if _is_replaced(call):
        kept = op.scatter_elements(dy, indices, builder.emit(op.zeros_like(updates)), axis)
    return [kept, no_grad(indices), op.gather_elements(dy, indices, axis)]


@differentiates("relax.scatter_nd")
def _scatter_nd(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> _Rules:
    _, indices, updates = call.args
    op = relax.op
    kept = op.scatter_nd(dy, indices, builder.emit(op.zeros_like(updates))) if _is_replaced(call) else dy
    return [kept, no_grad(indices), op.gather_nd(dy, indices)]


def _is_replaced(call: relax.Call) -> bool:
    """Whether updates take the place of what was there; else they are added.

    Raises:
        NotImplementedError: they are combined otherwise.
    """
    reduction = str(call.attrs.reduction)
    if reduction not in {"update", "add"}:
        raise NotImplementedError(f"{call.op.name} has a gradient for 'update' and 'add', not for '{reduction}'")
    return reduction == "update"
