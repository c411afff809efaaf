"""Orders and running sums."""

from __future__ import annotations

from tvm import relax
from tvm.relax.op.grad import no_grad

from autotm.kernels.code import OPAQUE
from autotm.kernels.operators import running
from autotm.lower.operators.moving.places import to_places
from autotm.lower.operators.rules import differentiates, dtype_of, is_float, legalizes, shape_of


@legalizes("relax.cumsum")
def _cumsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _summed(builder, call, call.args[0], dtype_of(call), exclusive=bool(call.attrs.exclusive), reverse=False)


@differentiates("relax.cumsum")
def _cumsum_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    (x,) = call.args
    if not is_float(x):
        return [no_grad(x)]
    made = _summed(builder, call, dy, dtype_of(x), exclusive=bool(call.attrs.exclusive), reverse=True)
    return [relax.op.reshape(builder.emit(made), shape_of(x))]


def _summed(
    builder: relax.BlockBuilder, call: relax.Call, x: relax.Expr, dtype: str, *, exclusive: bool, reverse: bool
) -> relax.Expr:
    axis = call.attrs.axis
    if axis is None:
        x, axis = builder.emit(relax.op.reshape(x, (-1,))), 0
    return builder.call_te(
        running.running_sum,
        x,
        int(axis) % len(shape_of(x)),
        dtype,
        exclusive=exclusive,
        reverse=reverse,
        primfunc_attrs=OPAQUE,
    )


@legalizes("relax.topk")
def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), attrs = call.args, call.attrs
    axis, is_largest, kind = int(attrs.axis), bool(attrs.largest), str(attrs.ret_type)
    made = []
    if kind in {"both", "values"}:
        made.append(_values(builder, x, axis, int(attrs.k), is_largest))
    if kind in {"both", "indices"}:
        made.append(_places(builder, x, axis, int(attrs.k), is_largest, str(attrs.dtype)))
    return relax.Tuple([builder.emit(item) for item in made]) if len(made) > 1 else made[0]


@differentiates("relax.topk")
def _topk_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    (x,), attrs = call.args, call.attrs
    kind, axis = str(attrs.ret_type), int(attrs.axis) % len(shape_of(x))
    if kind == "indices":
        return [no_grad(x)]
    if kind == "both":
        places, dy = builder.emit(relax.TupleGetItem(y, 1)), builder.emit(relax.TupleGetItem(dy, 0))
    else:
        places = builder.emit(_places(builder, x, axis, int(attrs.k), bool(attrs.largest), "int64"))
    return [to_places(builder, dy, places, shape_of(x), axis)]


def _values(builder: relax.BlockBuilder, x: relax.Expr, axis: int, count: int, is_descending: bool) -> relax.Expr:
    rank, axis, count = _ranks(builder, x, axis, count, is_descending)
    return builder.call_te(running.ranked, x, rank, axis, count)


def _places(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, count: int, is_descending: bool, dtype: str
) -> relax.Expr:
    rank, axis, count = _ranks(builder, x, axis, count, is_descending)
    return builder.call_te(running.ranked_places, rank, axis, count, dtype)


def _ranks(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, count: int, is_descending: bool
) -> tuple[relax.Var, int, int]:
    """The rank of each element, the axis counted from the front, and how many ranks are kept."""
    axis %= len(shape_of(x))
    extent = shape_of(x)[axis]
    rank = builder.emit(builder.call_te(running.ranks, x, axis, descending=is_descending))
    return rank, axis, extent if count < 1 else min(count, extent)
