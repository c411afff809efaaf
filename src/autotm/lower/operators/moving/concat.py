"""Concatenation and views."""

from __future__ import annotations

from tvm import relax

from autotm.kernels.operators import call_embedding_concat, data_movement
from autotm.lower.operators.moving.embedding import lookup_behind
from autotm.lower.operators.rules import differentiates, legalizes, shape_of

_MATRIX = 2


@legalizes("relax.concat")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    parts, axis = list(call.args[0]), int(call.attrs.axis)
    if len(shape_of(parts[0])) == _MATRIX and axis % _MATRIX == 1:
        lookups = [lookup_behind(builder, part) for part in parts]
        if any(lookups):
            sources = [lookup or (part,) for lookup, part in zip(lookups, parts, strict=True)]
            return call_embedding_concat(builder, sources)
    return data_movement.call_concat(builder, parts, axis)


@differentiates("relax.concat")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    # Slices fuse with the masks and additions behind them; the built-in split does not.
    axis = int(call.attrs.axis)
    gradients, start = [], 0
    for part in call.args[0]:
        end = start + shape_of(part)[axis]
        gradients.append(builder.emit(relax.op.strided_slice(dy, [axis], [start], [end])))
        start = end
    return [relax.Tuple(gradients)]


@legalizes("relax.reshape")
def _keep(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # A reshape moves nothing: it stays an operator, and becomes a view of the same tensor in the graph.
    return call
