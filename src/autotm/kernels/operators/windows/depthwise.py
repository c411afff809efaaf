"""Convolution of each channel by itself, and its gradients, as TE functions: NHWC, weights (R,S,1,K), float32.

With as many groups as channels nothing is left to contract but the window, so these are windows like pooling's, whose
schedules keep vectors of channels in registers. Features [c M, (c+1) M) come of channel c, M = K / C.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from autotm.kernels.code import extents
from autotm.kernels.operators.windows.window import Grid, Padding, Pair


def fits(window: Pair, padding: Padding) -> bool:
    """Whether every window reaches into the image, as the expressions here need."""
    return max(padding[0], padding[2]) < window[0] and max(padding[1], padding[3]) < window[1]


def depthwise_conv2d(x: te.Tensor, w: te.Tensor, stride: Pair, padding: Padding) -> te.Tensor:
    """Cross-correlation: (N,H,W,C) with (R,S,1,K) gives (N,P,Q,K)."""
    rows, columns, _, features = extents(w)
    grid = Grid.of(x.shape, (rows, columns), stride, padding)
    multiple = features // grid.channels
    r, s = grid.window_axes()

    def body(n: tirx.Var, i: tirx.Var, j: tirx.Var, k: tirx.Var) -> tirx.Expr:
        h, v = grid.element(i, j, r, s)
        return te.sum(_inside(grid, x, (n, h, v, _channel(k, multiple))) * w[r, s, 0, k], axis=[r, s])

    return te.compute((*grid.output_shape[:3], features), body, name="depthwise_conv2d")


def depthwise_conv2d_data_gradient(
    dy: te.Tensor, w: te.Tensor, x_shape: Sequence[int], stride: Pair, padding: Padding
) -> te.Tensor:
    """Gradient with respect to the input: (N,P,Q,K) with (R,S,1,K) gives `x_shape`, (N,H,W,C)."""
    rows, columns, _, features = extents(w)
    grid = Grid.of(x_shape, (rows, columns), stride, padding)
    multiple = features // grid.channels
    a, b = grid.covering_axes()
    m = te.reduce_axis((0, multiple), "m")

    def gather(n: tirx.Var, h: tirx.Var, v: tirx.Var, c: tirx.Var) -> tirx.Expr:
        window = grid.candidate(h, v, a, b)
        i, j, r, s = window
        k = c if multiple == 1 else c * multiple + m
        term = grid.covering(window, dy[n, i, j, k] * w[r, s, 0, k])
        return te.sum(term, axis=[a, b] if multiple == 1 else [a, b, m])

    return te.compute(tuple(int(extent) for extent in x_shape), gather, name="depthwise_conv2d_data_gradient")


def depthwise_conv2d_weight_gradient(
    x: te.Tensor, dy: te.Tensor, w_shape: Sequence[int], stride: Pair, padding: Padding
) -> te.Tensor:
    """Gradient with respect to the weights: (N,H,W,C) with (N,P,Q,K) gives `w_shape`, (R,S,1,K)."""
    rows, columns, _, features = w_shape
    grid = Grid.of(x.shape, (rows, columns), stride, padding)
    multiple = features // grid.channels
    batch, height, width, _ = extents(dy)
    n, i, j = (te.reduce_axis((0, extent), name) for extent, name in ((batch, "n"), (height, "i"), (width, "j")))

    def body(r: tirx.Var, s: tirx.Var, _: tirx.Var, k: tirx.Var) -> tirx.Expr:
        h, v = grid.element(i, j, r, s)
        return te.sum(_inside(grid, x, (n, h, v, _channel(k, multiple))) * dy[n, i, j, k], axis=[n, i, j])

    return te.compute(tuple(w_shape), body, name="depthwise_conv2d_weight_gradient")


def _inside(grid: Grid, x: te.Tensor, at: tuple[tirx.Expr, ...]) -> tirx.Expr:
    _, h, v, _ = at
    return grid.inside(h, v, lambda: x(*at), tirx.const(0.0, x.dtype))


def _channel(feature: tirx.Var, multiple: int) -> tirx.Expr:
    return feature if multiple == 1 else feature // multiple
