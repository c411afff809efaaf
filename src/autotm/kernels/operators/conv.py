"""Convolution and its two gradients as tensor expressions: NHWC activations, HWIO weights, float32.

With G groups, output features [g K/G, (g+1) K/G) see input channels [g C/G, (g+1) C/G) only; weights are (R,S,C/G,K).
The expressions state the meaning; `contraction.py` generates the code. It finds the main block by its name and
reads stride and padding from the block's annotations.
"""

from __future__ import annotations

from tvm import te, tirx

from autotm.kernels.code import extents

Stride = tuple[int, int]
"""(vertical, horizontal)."""
Padding = tuple[int, int, int, int]
"""(top, left, bottom, right)."""


def output_extent(extent: int, window: int, stride: int, before: int, after: int) -> int:
    """Positions of a window of `window` that slides by `stride` over `extent` padded by `before` and `after`."""
    return (extent + before + after - window) // stride + 1


def conv2d(x: te.Tensor, w: te.Tensor, stride: Stride, padding: Padding, groups: int = 1) -> te.Tensor:
    """Cross-correlation: (N,H,W,C) with (R,S,C/G,K) gives (N,P,Q,K)."""
    batch, height, width, _ = extents(x)
    rows, columns, channels, features = extents(w)
    top, left, bottom, right = padding
    padded = _spread(x, (1, 1), (top, left), (height + top + bottom, width + left + right))
    r = te.reduce_axis((0, rows), "r")
    s = te.reduce_axis((0, columns), "s")
    c = te.reduce_axis((0, channels), "c")
    shape = (
        batch,
        output_extent(height, rows, stride[0], top, bottom),
        output_extent(width, columns, stride[1], left, right),
        features,
    )

    def element(n: tirx.Var, i: tirx.Var, j: tirx.Var, k: tirx.Var) -> tirx.Expr:
        pixel = padded[n, i * stride[0] + r, j * stride[1] + s, _member(c, channels, k, features, groups)]
        return te.sum(pixel * w[r, s, c, k], axis=[r, s, c])

    return te.compute(shape, element, name="conv2d", attrs=_window(stride, padding, groups))


def conv2d_data_gradient(
    dy: te.Tensor,
    w: te.Tensor,
    x_shape: tuple[int, int, int, int],
    stride: Stride,
    padding: Padding,
    groups: int = 1,
) -> te.Tensor:
    """Gradient with respect to the input: (N,P,Q,K) with (R,S,C/G,K) gives `x_shape`, (N,H,W,C).

    Written as the convolution of dy, spread to the input's grid, with the turned weights; no such grid is made when
    the stride is above 1 (each phase of the grid meets its own taps only).
    """
    rows, columns, width_of_group, features = extents(w)
    batch, height, width, channels = x_shape
    spread = _spread(
        dy,
        stride,
        (rows - 1 - padding[0], columns - 1 - padding[1]),
        (height + rows - 1, width + columns - 1),
    )
    part = features // groups

    def turn(r: tirx.Var, s: tirx.Var, k: tirx.Var, c: tirx.Var) -> tirx.Expr:
        feature = _member(k, part, c, channels, groups)
        return w[rows - 1 - r, columns - 1 - s, c if groups == 1 else c % width_of_group, feature]

    turned = te.compute((rows, columns, part, channels), turn, name="turned_weights")
    r = te.reduce_axis((0, rows), "r")
    s = te.reduce_axis((0, columns), "s")
    k = te.reduce_axis((0, part), "k")

    def element(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        pixel = spread[n, i + r, j + s, _member(k, part, c, channels, groups)]
        return te.sum(pixel * turned[r, s, k, c], axis=[r, s, k])

    return te.compute(
        (batch, height, width, channels), element, name="conv2d_data_gradient", attrs=_window(stride, padding, groups)
    )


def conv2d_weight_gradient(
    x: te.Tensor,
    dy: te.Tensor,
    w_shape: tuple[int, int, int, int],
    stride: Stride,
    padding: Padding,
    groups: int = 1,
) -> te.Tensor:
    """Gradient with respect to the weights: (N,H,W,C) with (N,P,Q,K) gives `w_shape`, (R,S,C/G,K)."""
    batch, height, width, _ = extents(x)
    _, out_height, out_width, _ = extents(dy)
    top, left, bottom, right = padding
    padded = _spread(x, (1, 1), (top, left), (height + top + bottom, width + left + right))
    n = te.reduce_axis((0, batch), "n")
    i = te.reduce_axis((0, out_height), "i")
    j = te.reduce_axis((0, out_width), "j")
    _, _, channels, features = w_shape

    def element(r: tirx.Var, s: tirx.Var, c: tirx.Var, k: tirx.Var) -> tirx.Expr:
        pixel = padded[n, i * stride[0] + r, j * stride[1] + s, _member(c, channels, k, features, groups)]
        return te.sum(pixel * dy[n, i, j, k], axis=[n, i, j])

    return te.compute(w_shape, element, name="conv2d_weight_gradient", attrs=_window(stride, padding, groups))


def _spread(x: te.Tensor, stride: Stride, offset: tuple[int, int], extent: tuple[int, int]) -> te.Tensor:
    """Pixels of `x` put at offset + stride * index of a zero grid of `extent`; `x` itself if nothing changes.

    A negative offset, or an extent below what `x` covers, cuts pixels off.
    """
    batch, height, width, channels = extents(x)
    if stride == (1, 1) and offset == (0, 0) and extent == (height, width):
        return x

    def element(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        row, column = i - offset[0], j - offset[1]
        inside = [row >= 0, row < height * stride[0], column >= 0, column < width * stride[1]]
        inside += [row % stride[0] == 0] if stride[0] > 1 else []
        inside += [column % stride[1] == 0] if stride[1] > 1 else []
        value = x[n, row // stride[0], column // stride[1], c]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, x.dtype))

    return te.compute((batch, *extent, channels), element, name="padded" if stride == (1, 1) else "spread")


def _member(index: tirx.Var, size: int, other: tirx.Var, extent: int, groups: int) -> tirx.Expr:
    """Channel `index` of the group, of `size` channels, that feature `other` of `extent` belongs to; or vice versa."""
    return index if groups == 1 else other // (extent // groups) * size + index


def _window(stride: Stride, padding: Padding, groups: int) -> dict[str, list[int]]:
    return {"stride": list(stride), "padding": list(padding), "groups": [groups]}
