"""Lookups of rows of a table."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax.op.grad import no_grad, take_backward

from autotm.kernels import embedding
from autotm.lower.operators.rules import builtin, differentiates, legalizes, shape_of

_MATRIX = 2
_INJECTIVE = {"op_pattern": 2}
"""Lets elementwise work behind be fused: TVM does not see through an index that is itself looked up."""


@legalizes("relax.take")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_lookup(call):
        return builtin(builder, call)
    return builder.call_te(embedding.embedding, *call.args, primfunc_attrs=_INJECTIVE)


@differentiates("relax.take")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # A training step replaces `take_backward`, which is as large as the table, wherever it can (lower/lookups.py).
    x, indices = call.args
    axis = call.attrs.axis
    if _is_lookup(call) and len(shape_of(indices)) != 1:
        count = math.prod(shape_of(indices))
        dy = builder.emit(relax.op.reshape(dy, (count, shape_of(x)[1])))
        indices = builder.emit(relax.op.reshape(indices, (count,)))
    return [take_backward(dy, x, indices, axis), no_grad(call.args[1])]


def _is_lookup(call: relax.Call) -> bool:
    return len(shape_of(call.args[0])) == _MATRIX and call.attrs.axis == 0 and call.attrs.mode == "fast"
