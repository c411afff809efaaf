"""Lookups of rows of a table."""

from __future__ import annotations

import math
import re

import tvm
from tvm import relax, te, tirx
from tvm.relax.op.grad import no_grad, take_backward

from autotm.kernels.operators import embedding
from autotm.lower.operators.rules import Ints, builtin, differentiates, legalizes, number, shape_of

_MATRIX = 2
_INJECTIVE = {"op_pattern": 2}
"""Lets elementwise work behind be fused: TVM does not see through an index that is itself looked up."""
_KERNEL = re.compile(r"embedding\d*")
"""What the kernel functions of lookups are called."""


@legalizes("relax.take")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if (found := _entry(call)) is not None:
        return builder.call_te(_taken, call.args[0], *found)
    if call.attrs.mode == "fast" and call.attrs.axis is not None and not _is_lookup(call):
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        return builder.call_te(embedding.taken, *call.args, axis, primfunc_attrs=_INJECTIVE)
    if not _is_lookup(call):
        return builtin(builder, call)
    return builder.call_te(embedding.embedding, *call.args, primfunc_attrs=_INJECTIVE)


def lookup_behind(builder: relax.BlockBuilder, value: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
    """(table, indices) if `value` is the result of a lookup with one index a row that is a kernel call already."""
    call = builder.lookup_binding(value) if isinstance(value, relax.Var) else None
    if not isinstance(call, tvm.ir.Call) or call.op != tvm.ir.Op.get("relax.call_tir"):
        return None
    if not len(call.args[1].fields):
        return None
    table, *indices = call.args[1].fields
    is_lookup = _KERNEL.fullmatch(call.args[0].name_hint) and len(shape_of(indices[0])) == 1
    return (table, indices[0]) if is_lookup else None


@differentiates("relax.take")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # Training replaces `take_backward`, which is as large as the table, wherever it can (lower/updates/lookups.py).
    x, indices = call.args
    if (found := _entry(call)) is not None:
        return [builder.call_te(_put_back, dy, shape_of(x), *found), no_grad(indices)]
    if call.attrs.mode != "fast":
        raise NotImplementedError(f"take in mode '{call.attrs.mode}': its gradient would need the indices it clips")
    if _is_lookup(call) and len(shape_of(indices)) != 1:
        count = math.prod(shape_of(indices))
        dy = builder.emit(relax.op.reshape(dy, (count, shape_of(x)[1])))
        indices = builder.emit(relax.op.reshape(indices, (count,)))
    return [take_backward(dy, x, indices, call.attrs.axis), no_grad(call.args[1])]


def _entry(call: relax.Call) -> tuple[int, int] | None:
    """(axis, entry) where one entry is taken, whose number is known."""
    value, axis = number(call.args[1]), call.attrs.axis
    if value is None or axis is None:
        return None
    shape = shape_of(call.args[0])
    axis = int(axis) % len(shape)
    return axis, int(value) + (shape[axis] if value < 0 else 0)


def _taken(x: te.Tensor, axis: int, entry: int) -> te.Tensor:
    shape = [extent for other, extent in enumerate(x.shape) if other != axis]
    return te.compute(shape, lambda *at: x(*at[:axis], entry, *at[axis:]), name="entry")


def _put_back(dy: te.Tensor, shape: Ints, axis: int, entry: int) -> te.Tensor:
    """Zeros, but for the entry."""

    def element(*at: tirx.Var) -> tirx.Expr:
        value = dy(*at[:axis], *at[axis + 1 :])
        return tirx.Select(at[axis] == int(entry), value, tirx.const(0.0, dy.dtype))

    return te.compute(tuple(shape), element, name="entry_gradient")


def _is_lookup(call: relax.Call) -> bool:
    return len(shape_of(call.args[0])) == _MATRIX and call.attrs.axis == 0 and call.attrs.mode == "fast"
