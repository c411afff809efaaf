"""Rules of operators over windows of an image: pools, and resizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax, te
from tvm.relax.op.grad import no_grad

from autotm.kernels import windowed
from autotm.lower.rules import (
    Exprs,
    Ints,
    Legalize,
    arranged,
    builtin,
    differentiates,
    ints,
    legalizes,
    restored,
    shape_of,
)

# Pools over windows of lines and images, in any layout; the kernels' own is NHWC.

_KERNEL_LAYOUT = "NHWC"


@dataclass(frozen=True)
class _Windows:
    """Windows over (rows, columns), and the letters of the axes of operand and result.

    `geometry` is what the kernels take: size, strides, padding, and dilation or counted padding if there is any.
    """

    layout: str
    out_layout: str
    geometry: tuple[Ints, ...]

    @property
    def is_identity(self) -> bool:
        """Whether each window holds one element, in its place."""
        return self.geometry == ((1, 1), (1, 1), (0, 0, 0, 0)) and self.layout == self.out_layout

    @classmethod
    def of(cls, call: relax.Call) -> _Windows:
        """Read a call of a pool of images, or of lines, as images of one row; or of means over equal parts.

        Raises:
            NotImplementedError: a mean over elements that are not neighbours, or over parts that overlap.
        """
        attrs, layout = call.attrs, str(call.attrs.layout)
        own, result = (dict(zip(layout, shape_of(item), strict=True)) for item in (call.args[0], call))
        if "adaptive" in call.op.name:
            if any(own[axis] % result[axis] for axis in "HW"):
                raise NotImplementedError(f"{call.op.name} of parts that overlap; let their number divide the extents")
            part = tuple(own[axis] // result[axis] for axis in "HW")
            return cls(layout, str(attrs.out_layout), (part, part, (0, 0, 0, 0)))
        names = ("pool_size", "strides", "dilation", "padding")
        pool, strides, dilation, padding = (ints(getattr(attrs, name)) for name in names)
        if len(pool) == 1:
            pool, strides, dilation = ((1, *values) for values in (pool, strides, dilation))
            padding = (0, padding[0], 0, padding[1])
        is_mean = "avg" in call.op.name
        if is_mean and dilation != (1, 1):
            raise NotImplementedError(f"{call.op.name} of dilation {dilation}: a mean of elements that are apart")
        spans = [(taps - 1) * apart + 1 for taps, apart in zip(pool, dilation, strict=True)]
        # With ceil_mode, the last windows reach beyond the padding.
        ends = [
            max((result.get(axis, 1) - 1) * step + span - own.get(axis, 1) - before, after)
            for axis, step, span, before, after in zip("HW", strides, spans, padding[:2], padding[2:], strict=True)
        ]
        rest = ()
        if dilation != (1, 1):
            rest = (dilation,)
        elif is_mean and attrs.count_include_pad and any(padding):
            rest = (padding,)
        return cls(layout, str(attrs.out_layout), (pool, strides, (*padding[:2], *ends), *rest))


def _legalize_pool(kernel: Callable[..., te.Tensor]) -> Legalize:
    """Return the legalization of a pool: it brings images to channels last for the kernel, and the result back."""

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        windows = _Windows.of(call)
        if windows.is_identity:
            return call.args[0]
        pooled = builder.call_te(
            kernel, arranged(builder, call.args[0], windows.layout, _KERNEL_LAYOUT), *windows.geometry
        )
        return restored(builder, pooled, _KERNEL_LAYOUT, windows.out_layout)

    return rule


_MEANS = ("relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d")
legalizes("relax.nn.max_pool1d", "relax.nn.max_pool2d")(_legalize_pool(windowed.max_pool2d))
legalizes(*_MEANS)(_legalize_pool(windowed.avg_pool2d))


@differentiates("relax.nn.max_pool1d", "relax.nn.max_pool2d")
def _max_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    windows = _Windows.of(call)
    x = arranged(builder, call.args[0], windows.layout, _KERNEL_LAYOUT)
    y, dy = (arranged(builder, item, windows.out_layout, _KERNEL_LAYOUT) for item in (y, dy))
    gradient = builder.call_te(windowed.max_pool2d_gradient, x, y, dy, *windows.geometry)
    return [restored(builder, gradient, _KERNEL_LAYOUT, windows.layout)]


@differentiates(*_MEANS)
def _mean_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    windows = _Windows.of(call)
    if windows.is_identity:
        return [dy]
    extents = dict(zip(windows.layout, shape_of(call.args[0]), strict=True))
    shape = tuple(extents.get(axis, 1) for axis in _KERNEL_LAYOUT)
    dy = arranged(builder, dy, windows.out_layout, _KERNEL_LAYOUT)
    gradient = builder.call_te(windowed.avg_pool2d_gradient, dy, shape, *windows.geometry)
    return [restored(builder, gradient, _KERNEL_LAYOUT, windows.layout)]


# Images resized by interpolation.


@legalizes("relax.image.resize2d")
def _legalize_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if (resizing := _lines(call)) is None:
        return builtin(builder, call)
    first, lines = resizing
    return builder.call_te(lambda x: windowed.resize(x, first, lines), call.args[0], primfunc_name_hint="resize")


@differentiates("relax.image.resize2d")
def _resize_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    if (resizing := _lines(call)) is None:
        attrs = call.attrs
        raise NotImplementedError(
            f"resize2d has no gradient by {attrs.method} in {attrs.coordinate_transformation_mode}, {attrs.layout}"
        )
    first, (rows, columns) = resizing
    by_rows = builder.emit(_along(builder, dy, first, rows))
    return [_along(builder, by_rows, first + 1, columns), no_grad(call.args[1])]


def _along(builder: relax.BlockBuilder, dy: relax.Expr, axis: int, line: windowed.Line) -> relax.Expr:
    return builder.call_te(
        lambda slope: windowed.resize_gradient(slope, axis, line), dy, primfunc_name_hint="resize_gradient"
    )


def _lines(call: relax.Call) -> tuple[int, tuple[windowed.Line, windowed.Line]] | None:
    """Return the first of the two axes, and how each is resized; None where only Relax's own form covers it."""
    attrs = call.attrs
    layout, mode, method = str(attrs.layout), str(attrs.coordinate_transformation_mode), str(attrs.method)
    is_known = layout in {"NCHW", "NHWC"} and mode in windowed.MODES and method in windowed.METHODS
    if not is_known or int(attrs.cubic_exclude):
        return None
    first = layout.index("H")
    before, after = shape_of(call.args[0])[first : first + 2], ints(call.ty.shape)[first : first + 2]
    rounding, alpha = str(attrs.rounding_method), float(attrs.cubic_alpha)
    rows, columns = (
        windowed.Line.of(extent, results, mode, method, rounding, alpha)
        for extent, results in zip(before, after, strict=True)
    )
    return first, (rows, columns)
