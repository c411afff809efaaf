"""Rules of operators over windows of an image: pools, means over parts, and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax, te, tirx
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

    @classmethod
    def of(cls, call: relax.Call) -> _Windows:
        """Read a call of a pool of images, or of lines, as images of one row.

        Raises:
            NotImplementedError: a mean over elements that are not neighbours.
        """
        attrs, layout = call.attrs, str(call.attrs.layout)
        names = ("pool_size", "strides", "dilation", "padding")
        pool, strides, dilation, padding = (ints(getattr(attrs, name)) for name in names)
        if len(pool) == 1:
            pool, strides, dilation = ((1, *values) for values in (pool, strides, dilation))
            padding = (0, padding[0], 0, padding[1])
        own, made = (dict(zip(layout, shape_of(item), strict=True)) for item in (call.args[0], call))
        is_mean = "avg" in call.op.name
        if is_mean and dilation != (1, 1):
            raise NotImplementedError(f"{call.op.name} of dilation {dilation}: a mean of elements that are apart")
        spans = [(taps - 1) * apart + 1 for taps, apart in zip(pool, dilation, strict=True)]
        # With ceil_mode, the last windows reach beyond the padding.
        ends = [
            max((made.get(axis, 1) - 1) * step + span - own.get(axis, 1) - before, after)
            for axis, step, span, before, after in zip("HW", strides, spans, padding[:2], padding[2:], strict=True)
        ]
        rest = ()
        if dilation != (1, 1):
            rest = (dilation,)
        elif is_mean and attrs.count_include_pad and any(padding):
            rest = (padding,)
        return cls(layout, str(attrs.out_layout), (pool, strides, (*padding[:2], *ends), *rest))


def _legalize_pool(kernel: Callable[..., te.Tensor]) -> Legalize:
    """Return the form of a pool: bring images to channels last for the kernel, and its result back."""

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        windows = _Windows.of(call)
        made = builder.call_te(
            kernel, arranged(builder, call.args[0], windows.layout, _KERNEL_LAYOUT), *windows.geometry
        )
        return restored(builder, made, _KERNEL_LAYOUT, windows.out_layout)

    return rule


for _rank in (1, 2):
    legalizes(f"relax.nn.max_pool{_rank}d")(_legalize_pool(windowed.max_pool2d))
    legalizes(f"relax.nn.avg_pool{_rank}d")(_legalize_pool(windowed.avg_pool2d))


@differentiates("relax.nn.max_pool1d", "relax.nn.max_pool2d")
def _max_gradient(y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    windows = _Windows.of(call)
    x = arranged(builder, call.args[0], windows.layout, _KERNEL_LAYOUT)
    y, dy = (arranged(builder, item, windows.out_layout, _KERNEL_LAYOUT) for item in (y, dy))
    made = builder.call_te(windowed.max_pool2d_gradient, x, y, dy, *windows.geometry)
    return [restored(builder, made, _KERNEL_LAYOUT, windows.layout)]


@differentiates("relax.nn.avg_pool1d", "relax.nn.avg_pool2d")
def _mean_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    windows = _Windows.of(call)
    extents = dict(zip(windows.layout, shape_of(call.args[0]), strict=True))
    shape = tuple(extents.get(axis, 1) for axis in _KERNEL_LAYOUT)
    dy = arranged(builder, dy, windows.out_layout, _KERNEL_LAYOUT)
    made = builder.call_te(windowed.avg_pool2d_gradient, dy, shape, *windows.geometry)
    return [restored(builder, made, _KERNEL_LAYOUT, windows.layout)]


# Means over as many parts of an image as the result has pixels.
#
# Part i of n is rows floor(i H / n) to ceil((i + 1) H / n): parts overlap where n does not divide H.

_SPATIAL = "DHW"


@legalizes("relax.nn.adaptive_avg_pool1d", "relax.nn.adaptive_avg_pool2d", "relax.nn.adaptive_avg_pool3d")
def _legalize_adaptive(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), (axes, window) = call.args, _parts_of(call)
    if shape_of(x) == shape_of(call):
        return x
    if window:
        return builder.call_te(windowed.avg_pool2d, x, window, window, (0, 0, 0, 0))
    return builder.call_te(_means, x, shape_of(call), axes)


@differentiates("relax.nn.adaptive_avg_pool1d", "relax.nn.adaptive_avg_pool2d", "relax.nn.adaptive_avg_pool3d")
def _adaptive_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    (x,), (axes, window) = call.args, _parts_of(call)
    if shape_of(x) == shape_of(dy):
        return [dy]
    if window:
        return [builder.call_te(windowed.avg_pool2d_gradient, dy, shape_of(x), window, window, (0, 0, 0, 0))]
    return [builder.call_te(_spread, dy, shape_of(x), axes)]


def _parts_of(call: relax.Call) -> tuple[Ints, Ints | None]:
    """Return the axes that have parts, and the window of a plain pool that computes the same, if one does."""
    own, results, layout = shape_of(call.args[0]), shape_of(call), str(call.attrs.layout)
    axes = tuple(axis for axis, letter in enumerate(layout) if letter in _SPATIAL)
    is_pool = layout == _KERNEL_LAYOUT and not any(own[axis] % results[axis] for axis in axes)
    return axes, tuple(own[axis] // results[axis] for axis in axes) if is_pool else None


def _bounds(part: tirx.Expr, extent: int, parts: int) -> tuple[tirx.Expr, tirx.Expr]:
    return tirx.floordiv(part * extent, parts), tirx.floordiv((part + 1) * extent + parts - 1, parts)


def _longest(extent: int, parts: int) -> int:
    return max(math.ceil((part + 1) * extent / parts) - part * extent // parts for part in range(parts))


def _means(x: te.Tensor, shape: Ints, axes: Ints) -> te.Tensor:
    extents = {int(axis): (int(x.shape[int(axis)]), int(shape[int(axis)])) for axis in axes}
    offsets = {axis: te.reduce_axis((0, _longest(*pair)), f"offset{axis}") for axis, pair in extents.items()}

    def total(*at: tirx.Var) -> tirx.Expr:
        place, inside = list(at), []
        for axis, (extent, parts) in extents.items():
            start, stop = _bounds(at[axis], extent, parts)
            place[axis] = start + offsets[axis]
            inside += [] if extent % parts == 0 else [place[axis] < stop]
        value = x(*place)
        whole = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, x.dtype)) if inside else value
        return te.sum(whole, axis=list(offsets.values()))

    sums = te.compute(tuple(shape), total, name="adaptive_sum")
    return te.compute(
        tuple(shape), lambda *at: sums(*at) / tirx.Cast(x.dtype, _count(at, extents)), name="adaptive_avg_pool"
    )


def _count(at: tuple[tirx.Var, ...], extents: dict[int, tuple[int, int]]) -> tirx.Expr:
    count: tirx.Expr = tirx.const(1, "int64")
    for axis, (extent, parts) in extents.items():
        start, stop = _bounds(at[axis], extent, parts)
        count = count * (stop - start)
    return count


def _spread(dy: te.Tensor, shape: Ints, axes: Ints) -> te.Tensor:
    """Share each mean's gradient among its pixels: only parts near a pixel's own can hold it."""
    extents = {int(axis): (int(shape[int(axis)]), int(dy.shape[int(axis)])) for axis in axes}
    # Pixel h lies in part floor(h n / H), and in few before and after it.
    near = {axis: te.reduce_axis((0, _near(*pair)), f"part{axis}") for axis, pair in extents.items()}

    def element(*at: tirx.Var) -> tirx.Expr:
        place, inside = list(at), []
        for axis, (extent, parts) in extents.items():
            # The first part that holds a pixel: the least i with ceil((i + 1) H / n) > h.
            part = tirx.floordiv(at[axis] * parts, extent) + near[axis]
            start, stop = _bounds(part, extent, parts)
            inside += [part < parts, at[axis] >= start, at[axis] < stop]
            place[axis] = tirx.min(part, parts - 1)
        share = dy(*place) / tirx.Cast(dy.dtype, _count(tuple(place), extents))
        return te.sum(tirx.Select(tirx.all(*inside), share, tirx.const(0.0, dy.dtype)), axis=list(near.values()))

    return te.compute(tuple(shape), element, name="adaptive_avg_pool_gradient")


def _near(extent: int, parts: int) -> int:
    """Return the most parts that hold one pixel."""
    return max(
        sum(part * extent // parts <= pixel < -(-(part + 1) * extent // parts) for part in range(parts))
        for pixel in range(extent)
    )


# Images resized by interpolation.


@legalizes("relax.image.resize2d")
def _legalize_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if (found := _lines(call)) is None:
        return builtin(builder, call)
    first, lines = found
    return builder.call_te(lambda x: windowed.resize(x, first, lines), call.args[0], primfunc_name_hint="resize")


@differentiates("relax.image.resize2d")
def _resize_gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> Exprs:
    if (found := _lines(call)) is None:
        attrs = call.attrs
        raise NotImplementedError(
            f"resize2d has no gradient by {attrs.method} in {attrs.coordinate_transformation_mode}, {attrs.layout}"
        )
    first, (rows, columns) = found
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
