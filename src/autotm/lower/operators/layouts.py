"""Operands whose axes are named by letters, brought to the order of the kernels and back."""

from __future__ import annotations

from tvm import relax, topi

from autotm.lower.operators.rules import shape_of


def arranged(builder: relax.BlockBuilder, x: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    """`x`, whose axes are named by `layout`, with the axes in another order, and axes of one entry that it lacks."""
    own = [letter for letter in wanted if letter in layout]
    if own != list(layout):
        x = builder.emit(builder.call_te(topi.transpose, x, [layout.index(letter) for letter in own]))
    if len(own) == len(wanted):
        return x
    extents = dict(zip(own, shape_of(x), strict=True))
    return builder.emit(relax.op.reshape(x, [extents.get(letter, 1) for letter in wanted]))


def restored(builder: relax.BlockBuilder, made: relax.Expr, layout: str, wanted: str) -> relax.Expr:
    """What a kernel made, with axes named by `layout`, in an order that may lack some axes of one entry."""
    if layout == wanted:
        return made
    made = builder.emit(made)
    kept = "".join(letter for letter in layout if letter in wanted)
    if kept != layout:
        extents = zip(layout, shape_of(made), strict=True)
        made = builder.emit(relax.op.reshape(made, [extent for letter, extent in extents if letter in wanted]))
    return arranged(builder, made, kept, wanted)
