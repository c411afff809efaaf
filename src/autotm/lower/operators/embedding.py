"""Lookups of rows of a table."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax.op.grad import no_grad, take_backward

from autotm.lower.operators.rules import differentiates, shape_of


@differentiates("relax.take")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # Relax's kernel for this gradient knows one axis of indices only.
    x, indices = call.args
    count = math.prod(shape_of(indices))
    if call.attrs.axis == 0 and len(shape_of(indices)) != 1:
        dy = builder.emit(relax.op.reshape(dy, (count, *shape_of(x)[1:])))
        indices = builder.emit(relax.op.reshape(indices, (count,)))
    return [take_backward(dy, x, indices, call.attrs.axis), no_grad(call.args[1])]
