"""Marks for gradients: a network says of which operator's result one is, lowering knows how to compute it."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

_MARK = "autotm.gradient"
_RESHAPING = {f"relax.{name}" for name in ("expand_dims", "flatten", "reshape", "squeeze")}


def gradient_of(
    builder: relax.BlockBuilder, result: relax.Var, slope: relax.Expr, operands: Sequence[relax.Expr]
) -> list[relax.Var]:
    """The gradients by an operator's first operands, of which only the shapes are read.

    Args:
        builder: to emit to.
        result: what the operator gave; its binding is the operator's call.
        slope: the gradient by the result, by its first part where it has several.
        operands: as many as gradients are wanted.
    """
    types = relax.TupleType([operand.ty for operand in operands])
    found = builder.emit(relax.op.call_pure_packed(_MARK, result, slope, ty_args=types))
    return [builder.emit(relax.TupleGetItem(found, place)) for place in range(len(operands))]


def gradient_by(builder: relax.BlockBuilder, x: relax.Var, y: relax.Var, slope: relax.Var) -> relax.Var:
    """The gradient by `x` of what was computed from it, back through one operator after the other."""
    leads: dict[relax.Var, bool] = {x: True}
    order: list[relax.Var] = []

    def operands(result: relax.Var) -> list[int]:
        call = builder.lookup_binding(result)
        named = enumerate(call.args) if isinstance(call, relax.Call) else ()
        return [place for place, each in named if isinstance(each, relax.Var) and depends(each)]

    def depends(result: relax.Var) -> bool:
        if result not in leads:
            leads[result] = bool(operands(result))
            if leads[result]:
                order.append(result)
        return leads[result]

    depends(y)
    slopes = {y: slope}
    for result in reversed(order):
        call, places = builder.lookup_binding(result), operands(result)
        for place, more in zip(places, _slopes(builder, result, slopes[result], places), strict=True):
            operand = call.args[place]
            slopes[operand] = builder.emit(relax.op.add(slopes[operand], more)) if operand in slopes else more
    return slopes[x]


def _slopes(builder: relax.BlockBuilder, result: relax.Var, slope: relax.Var, places: Sequence[int]) -> list[relax.Var]:
    """The gradients by some operands of a call; of what only names or orders axes anew, the call undone."""
    call = builder.lookup_binding(result)
    if call.op.name == "relax.permute_dims":
        axes = [int(axis) for axis in call.attrs.axes]
        return [builder.emit(relax.op.permute_dims(slope, [axes.index(axis) for axis in range(len(axes))]))]
    if call.op.name in _RESHAPING:
        return [builder.emit(relax.op.reshape(slope, call.args[0].ty.shape))]
    found = gradient_of(builder, result, slope, call.args[: max(places) + 1])
    return [found[place] for place in places]


def is_gradient(expression: relax.Expr) -> bool:
    """Whether an expression is such a mark; its arguments are then the result and the slope."""
    return (
        isinstance(expression, relax.Call)
        and expression.op == tvm.ir.Op.get("relax.call_pure_packed")
        and expression.args[0].global_symbol == _MARK
    )
