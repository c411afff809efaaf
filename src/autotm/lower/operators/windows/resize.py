"""Images resized by interpolation."""

from __future__ import annotations

from tvm import relax
from tvm.relax.op.grad import no_grad

from autotm.kernels.operators import resize
from autotm.lower.operators.rules import builtin, differentiates, ints, legalizes, shape_of


@legalizes("relax.image.resize2d")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if (found := _lines(call)) is None:
        return builtin(builder, call)
    first, lines = found
    return builder.call_te(lambda x: resize.resize(x, first, lines), call.args[0], primfunc_name_hint="resize")


@differentiates("relax.image.resize2d")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    if (found := _lines(call)) is None:
        attrs = call.attrs
        raise NotImplementedError(
            f"resize2d has no gradient by {attrs.method} in {attrs.coordinate_transformation_mode}, {attrs.layout}"
        )
    first, (rows, columns) = found
    by_rows = builder.emit(_along(builder, dy, first, rows))
    return [_along(builder, by_rows, first + 1, columns), no_grad(call.args[1])]


def _along(builder: relax.BlockBuilder, dy: relax.Expr, axis: int, line: resize.Line) -> relax.Expr:
    return builder.call_te(
        lambda slope: resize.resize_gradient(slope, axis, line), dy, primfunc_name_hint="resize_gradient"
    )


def _lines(call: relax.Call) -> tuple[int, tuple[resize.Line, resize.Line]] | None:
    """The first of the two axes, and how each is resized; None for what only Relax's own form covers."""
    attrs = call.attrs
    layout, mode, method = str(attrs.layout), str(attrs.coordinate_transformation_mode), str(attrs.method)
    is_known = layout in {"NCHW", "NHWC"} and mode in resize.MODES and method in resize.METHODS
    if not is_known or int(attrs.cubic_exclude):
        return None
    first = layout.index("H")
    before, after = shape_of(call.args[0])[first : first + 2], ints(call.ty.shape)[first : first + 2]
    rounding, alpha = str(attrs.rounding_method), float(attrs.cubic_alpha)
    rows, columns = (
        resize.Line.of(extent, results, mode, method, rounding, alpha)
        for extent, results in zip(before, after, strict=True)
    )
    return first, (rows, columns)
