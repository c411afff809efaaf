"""Rules of operators that read or write at places that indices name (lookups, gathers, scatters), and of orders."""

from __future__ import annotations

import math
import re

from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad, take_backward

from autotm.kernels import along_axis, tables
from autotm.kernels.tables import Scatter, scatter_sum
from autotm.kernels.tir import OPAQUE
from autotm.lower.rules import (
    Exprs,
    Ints,
    builtin,
    differentiates,
    dtype_of,
    is_call,
    is_float,
    legalizes,
    shape_of,
)

# Values read from, or written to, places that indices name: their gradient goes back to these places.

_FEW = 4
"""Most entries along an axis where each position compares all of them: such a kernel fuses and runs in parallel."""


def call_scatter_sum(
    builder: relax.BlockBuilder, dy: relax.Expr, indices: list[relax.Expr], shape: Ints, scatter: Scatter
) -> relax.Expr:
    """Call the kernel that adds up `dy` at the places of `shape`."""
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
        return x(*at[:axis], tables.nearest(index, x.shape[axis]), *at[axis + 1 :])

    return te.compute(indices.shape, element, name="gather_elements")


@differentiates("relax.gather_elements")
def _gather(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    x, indices = call.args
    axis = int(call.attrs.axis) % len(shape_of(x))
    return [to_places(builder, dy, indices, shape_of(x), axis), no_grad(indices)]


def to_places(builder: relax.BlockBuilder, dy: relax.Expr, indices: relax.Expr, shape: Ints, axis: int) -> relax.Expr:
    """Return `dy` added up along `axis` at an index for each element: the gradient of a gather from `shape`."""
    own = shape_of(dy)
    is_aligned = all(own[other] == shape[other] for other in range(len(own)) if other != axis)
    if own[axis] <= _FEW or not is_aligned:
        return builder.call_te(_sum_gathered, dy, indices, shape, axis)
    return call_scatter_sum(builder, dy, [indices], shape, Scatter.of_elements(own, shape, axis))


def _sum_gathered(dy: te.Tensor, indices: te.Tensor, shape: Ints, axis: int) -> te.Tensor:
    """Return at each position the sum over the entries along an axis that were gathered from there."""
    others = [other for other in range(len(shape)) if other != axis and int(dy.shape[other]) < int(shape[other])]
    entry = te.reduce_axis((0, dy.shape[axis]), "entry")

    def total(*at: tirx.Var) -> tirx.Expr:
        place = [*at[:axis], entry, *at[axis + 1 :]]
        is_here = _counted(indices(*place), shape[axis], indices.dtype) == tirx.Cast(indices.dtype, at[axis])
        is_taken = tirx.all(*(at[other] < dy.shape[other] for other in others), is_here)
        return te.sum(tirx.if_then_else(is_taken, dy(*place), tirx.const(0.0, dy.dtype)), axis=entry)

    return te.compute(tuple(shape), total, name="gather_elements_gradient")


def _counted(index: tirx.Expr, extent: int, dtype: str) -> tirx.Expr:
    """Count an index from the end where it is negative."""
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
    """Return the index at an entry of the broadcast indices: from the end where it is negative, within the range."""
    lead = len(entries) - len(index.shape)
    value = index(*(0 if int(own) == 1 else entry for own, entry in zip(index.shape, entries[lead:], strict=True)))
    return tables.nearest(_counted(value, int(extent), index.dtype), extent)


@differentiates("relax.index_tensor")
def _index(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    x, indices = call.args[0], list(call.args[1])
    scatter = Scatter.of_places(shape_of(x), [shape_of(index) for index in indices])
    flat = [_with_axes(builder, index) for index in indices]
    gradient = call_scatter_sum(builder, dy, flat, shape_of(x), scatter)
    return [gradient, relax.Tuple([*map(no_grad, indices)])]


def _with_axes(builder: relax.BlockBuilder, index: relax.Expr) -> relax.Expr:
    return index if shape_of(index) else builder.emit(relax.op.reshape(index, (1,)))


@differentiates("relax.gather_nd")
def _gather_nd(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
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
def _scatter_elements(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    _, indices, updates = call.args
    axis, op = int(call.attrs.axis), relax.op
    kept = dy
    if _is_replaced(call):
        kept = op.scatter_elements(dy, indices, builder.emit(op.zeros_like(updates)), axis)
    return [kept, no_grad(indices), op.gather_elements(dy, indices, axis)]


@differentiates("relax.scatter_nd")
def _scatter_nd(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    _, indices, updates = call.args
    op = relax.op
    kept = op.scatter_nd(dy, indices, builder.emit(op.zeros_like(updates))) if _is_replaced(call) else dy
    return [kept, no_grad(indices), op.gather_nd(dy, indices)]


def _is_replaced(call: relax.Call) -> bool:
    """Return whether updates take the place of what was there; else they are added.

    Raises:
        NotImplementedError: they are combined otherwise.
    """
    reduction = str(call.attrs.reduction)
    if reduction not in {"update", "add"}:
        raise NotImplementedError(f"{call.op.name} has a gradient for 'update' and 'add', not for '{reduction}'")
    return reduction == "update"


# Lookups of rows of a table.

_MATRIX = 2
_INJECTIVE = {"op_pattern": 2}
"""Lets elementwise work behind be fused: TVM does not see through an index that is itself looked up."""
_KERNEL = re.compile(r"embedding\d*")
"""Pattern of the names of lookups' kernel functions."""


@legalizes("relax.take")
def _legalize_take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if call.attrs.mode == "fast" and call.attrs.axis is not None and not _is_lookup(call):
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        return builder.call_te(tables.taken, *call.args, axis, primfunc_attrs=_INJECTIVE)
    if not _is_lookup(call):
        return builtin(builder, call)
    return builder.call_te(tables.embedding, *call.args, primfunc_attrs=_INJECTIVE)


def lookup_behind(builder: relax.BlockBuilder, value: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
    """Return (table, indices) if `value` is the result of a lookup, one index a row, that is a kernel call already."""
    call = builder.lookup_binding(value) if isinstance(value, relax.Var) else None
    if not is_call(call, "relax.call_tir") or not len(call.args[1].fields):
        return None
    table, *indices = call.args[1].fields
    is_lookup = _KERNEL.fullmatch(call.args[0].name_hint) and len(shape_of(indices[0])) == 1
    return (table, indices[0]) if is_lookup else None


@differentiates("relax.take")
def _take_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    # Training replaces `take_backward`, which is as large as the table, wherever it can (lower/updates.py).
    x, indices = call.args
    if call.attrs.mode != "fast":
        raise NotImplementedError(f"take in mode '{call.attrs.mode}': its gradient would need the indices it clips")
    if _is_lookup(call) and len(shape_of(indices)) != 1:
        count = math.prod(shape_of(indices))
        dy = builder.emit(relax.op.reshape(dy, (count, shape_of(x)[1])))
        indices = builder.emit(relax.op.reshape(indices, (count,)))
    return [take_backward(dy, x, indices, call.attrs.axis), no_grad(call.args[1])]


def _is_lookup(call: relax.Call) -> bool:
    return len(shape_of(call.args[0])) == _MATRIX and call.attrs.axis == 0 and call.attrs.mode == "fast"


# Orders and running sums.


@legalizes("relax.cumsum")
def _cumsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _summed(builder, call, call.args[0], dtype_of(call), exclusive=bool(call.attrs.exclusive), reverse=False)


@differentiates("relax.cumsum")
def _cumsum_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    (x,) = call.args
    if not is_float(x):
        return [no_grad(x)]
    sums = _summed(builder, call, dy, dtype_of(x), exclusive=bool(call.attrs.exclusive), reverse=True)
    return [relax.op.reshape(builder.emit(sums), shape_of(x))]


def _summed(
    builder: relax.BlockBuilder, call: relax.Call, x: relax.Expr, dtype: str, *, exclusive: bool, reverse: bool
) -> relax.Expr:
    axis = call.attrs.axis
    if axis is None:
        x, axis = builder.emit(relax.op.reshape(x, (-1,))), 0
    return builder.call_te(
        along_axis.running_sum,
        x,
        int(axis) % len(shape_of(x)),
        dtype,
        exclusive=exclusive,
        reverse=reverse,
        primfunc_attrs=OPAQUE,
    )


@legalizes("relax.topk")
def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    kind, results = str(call.attrs.ret_type), []
    if kind in {"both", "values"}:
        results.append(builder.call_te(along_axis.ranked, call.args[0], *_ranks(builder, call)))
    if kind in {"both", "indices"}:
        results.append(builder.call_te(along_axis.ranked_places, *_ranks(builder, call), str(call.attrs.dtype)))
    return relax.Tuple([builder.emit(item) for item in results]) if len(results) > 1 else results[0]


@differentiates("relax.topk")
def _topk_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    (x,), kind = call.args, str(call.attrs.ret_type)
    if kind == "indices":
        return [no_grad(x)]
    if kind == "both":
        places, dy = builder.emit(relax.TupleGetItem(y, 1)), builder.emit(relax.TupleGetItem(dy, 0))
    else:
        places = builder.emit(builder.call_te(along_axis.ranked_places, *_ranks(builder, call), "int64"))
    return [to_places(builder, dy, places, shape_of(x), int(call.attrs.axis) % len(shape_of(x)))]


def _ranks(builder: relax.BlockBuilder, call: relax.Call) -> tuple[relax.Var, int, int]:
    """Return the rank of each element, the axis counted from the front, and how many ranks are kept."""
    (x,), attrs = call.args, call.attrs
    axis = int(attrs.axis) % len(shape_of(x))
    extent, count = shape_of(x)[axis], int(attrs.k)
    rank = builder.emit(builder.call_te(along_axis.ranks, x, axis, descending=bool(attrs.largest)))
    return rank, axis, extent if count < 1 else min(count, extent)
