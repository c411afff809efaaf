"""Means over as many parts of an image as the result has pixels.

Part i of n is rows floor(i H / n) to ceil((i + 1) H / n): parts overlap where n does not divide H.
"""

from __future__ import annotations

import math

from tvm import relax, te, tirx

from autotm.kernels.operators import pooling
from autotm.lower.operators.rules import Ints, differentiates, legalizes, shape_of

_SPATIAL = "DHW"


@legalizes("relax.nn.adaptive_avg_pool1d")
@legalizes("relax.nn.adaptive_avg_pool2d")
@legalizes("relax.nn.adaptive_avg_pool3d")
def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (x,), shape, axes = call.args, shape_of(call), _axes(call)
    if shape_of(x) == shape:
        return x
    if str(call.attrs.layout) == "NHWC" and (window := _windows(shape_of(x), shape, axes)):
        return builder.call_te(pooling.avg_pool2d, x, window, window, (0, 0, 0, 0))
    return builder.call_te(_means, x, shape, axes)


@differentiates("relax.nn.adaptive_avg_pool1d")
@differentiates("relax.nn.adaptive_avg_pool2d")
@differentiates("relax.nn.adaptive_avg_pool3d")
def _gradient(_y: relax.Var, call: relax.Call, dy: relax.Var, builder: relax.BlockBuilder) -> list[relax.Expr]:
    (x,), shape, axes = call.args, shape_of(dy), _axes(call)
    if shape_of(x) == shape:
        return [dy]
    if str(call.attrs.layout) == "NHWC" and (window := _windows(shape_of(x), shape, axes)):
        return [builder.call_te(pooling.avg_pool2d_gradient, dy, shape_of(x), window, window, (0, 0, 0, 0))]
    return [builder.call_te(_spread, dy, shape_of(x), axes)]


def _axes(call: relax.Call) -> Ints:
    return tuple(axis for axis, letter in enumerate(str(call.attrs.layout)) if letter in _SPATIAL)


def _windows(shape: Ints, results: Ints, axes: Ints) -> Ints | None:
    """The window of a plain pool that does the same, where parts do not overlap."""
    if any(shape[axis] % results[axis] for axis in axes):
        return None
    return tuple(shape[axis] // results[axis] for axis in axes)


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
    """Each mean's gradient, shared out over the pixels that it is of: only parts near a pixel's own can hold it."""
    extents = {int(axis): (int(shape[int(axis)]), int(dy.shape[int(axis)])) for axis in axes}
    # Pixel h lies in part floor(h n / H), and in few before and after it.
    near = {axis: te.reduce_axis((0, _near(*pair)), f"part{axis}") for axis, pair in extents.items()}

    def element(*at: tirx.Var) -> tirx.Expr:
        place, inside = list(at), []
        for axis, (extent, parts) in extents.items():
            part = _first(at[axis], extent, parts) + near[axis]
            start, stop = _bounds(part, extent, parts)
            inside += [part < parts, at[axis] >= start, at[axis] < stop]
            place[axis] = tirx.min(part, parts - 1)
        share = dy(*place) / tirx.Cast(dy.dtype, _count(tuple(place), extents))
        return te.sum(tirx.Select(tirx.all(*inside), share, tirx.const(0.0, dy.dtype)), axis=list(near.values()))

    return te.compute(tuple(shape), element, name="adaptive_avg_pool_gradient")


def _first(pixel: tirx.Expr, extent: int, parts: int) -> tirx.Expr:
    """The first part that holds a pixel: the least i with ceil((i + 1) H / n) > h."""
    return tirx.floordiv(pixel * parts, extent)


def _near(extent: int, parts: int) -> int:
    """The most parts that hold one pixel."""
    return max(
        sum(part * extent // parts <= pixel < -(-(part + 1) * extent // parts) for part in range(parts))
        for pixel in range(extent)
    )
