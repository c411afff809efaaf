"""Pooling over windows, and its gradients, as TE functions: NHWC activations, float32, stride (sh, sw).

Padding is (top, left, bottom, right). A maximum ignores it; a mean divides by the positions inside the image, and by
those of the padding that are `counted`. Windows of a maximum may have elements `dilation` apart. Schedules recognise
the blocks by the names given here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from autotm.kernels.operators.windows.window import Grid, Padding, Pair

_INT8_MAX = 127


def _least(dtype: str) -> tirx.Expr:
    """What is no larger than anything of that type."""
    is_real = str(dtype).startswith("float")
    return tirx.const(0, dtype) - tirx.infinity(dtype) if is_real else tirx.min_value(dtype)


_LARGEST = te.comm_reducer(
    lambda some, other: tirx.max(some, other),  # noqa: PLW0108 - TVM asks a function of Python's how many it takes
    _least,
    name="max",
)
"""Of windows of nothing but -inf it is -inf, where TVM's own is the lowest finite number. NaN counts for nothing."""


def max_pool2d(x: te.Tensor, pool: Pair, stride: Pair, padding: Padding, dilation: Pair = (1, 1)) -> te.Tensor:
    """The maximum over each window; x is (n, h, w, c)."""
    grid = Grid.of(x.shape, pool, stride, padding, dilation)
    r, s = grid.window_axes()

    def body(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        h, w = grid.element(i, j, r, s)
        return _LARGEST(grid.inside(h, w, lambda: x[n, h, w, c], _least(x.dtype)), axis=[r, s])

    return te.compute(grid.output_shape, body, name="max_pool2d")


def max_pool2d_gradient(
    x: te.Tensor, y: te.Tensor, dy: te.Tensor, pool: Pair, stride: Pair, padding: Padding, dilation: Pair = (1, 1)
) -> te.Tensor:
    """Gradient of x, shape (n, h, w, c): each window's dy goes to its first maximum in row-major order, as in PyTorch.

    x is the pooled input, y the pooled output, dy the gradient of y. The place of the maximum within its window is
    kept in a workspace of y's shape (int8, or int32 where the window has more than 126 positions).
    """
    grid = Grid.of(x.shape, pool, stride, padding, dilation)
    nowhere = pool[0] * pool[1]
    dtype = "int8" if nowhere < _INT8_MAX else "int32"
    r, s = grid.window_axes()

    def place(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        h, w = grid.element(i, j, r, s)
        position, none = tirx.Cast(dtype, r * pool[1] + s), tirx.const(nowhere, dtype)
        first = grid.inside(h, w, lambda: tirx.Select(x[n, h, w, c] == y[n, i, j, c], position, none), none)
        return te.min(first, axis=[r, s])

    index = te.compute(grid.output_shape, place, name="max_pool2d_index")
    a, b = grid.covering_axes()

    def gather(n: tirx.Var, h: tirx.Var, w: tirx.Var, c: tirx.Var) -> tirx.Expr:
        window = grid.candidate(h, w, a, b)
        i, j, u, v = window
        u, v = (at if apart == 1 else at // apart for at, apart in zip((u, v), dilation, strict=True))
        here = index[n, i, j, c] == tirx.Cast(dtype, u * pool[1] + v)
        return te.sum(grid.covering(window, tirx.Select(here, dy[n, i, j, c], tirx.const(0, dy.dtype))), axis=[a, b])

    return te.compute([int(extent) for extent in x.shape], gather, name="max_pool2d_gradient")


def avg_pool2d(x: te.Tensor, pool: Pair, stride: Pair, padding: Padding, counted: Padding = (0, 0, 0, 0)) -> te.Tensor:
    """The mean over the positions of each window that count; x is (n, h, w, c)."""
    grid = Grid.of(x.shape, pool, stride, padding, counted=counted)
    r, s = grid.window_axes()

    def body(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        h, w = grid.element(i, j, r, s)
        return te.sum(grid.inside(h, w, lambda: x[n, h, w, c], tirx.const(0, x.dtype)), axis=[r, s])

    total = te.compute(grid.output_shape, body, name="avg_pool2d")
    return te.compute(
        grid.output_shape,
        lambda n, i, j, c: total[n, i, j, c] * grid.reciprocal_count(i, j, x.dtype),
        name="avg_pool2d_mean",
    )


def avg_pool2d_gradient(
    dy: te.Tensor,
    x_shape: Sequence[int],
    pool: Pair,
    stride: Pair,
    padding: Padding,
    counted: Padding = (0, 0, 0, 0),
) -> te.Tensor:
    """Gradient of x, shape `x_shape`: the sum of dy / positions that count over the windows that cover it."""
    grid = Grid.of(x_shape, pool, stride, padding, counted=counted)
    a, b = grid.covering_axes()

    def gather(n: tirx.Var, h: tirx.Var, w: tirx.Var, c: tirx.Var) -> tirx.Expr:
        window = grid.candidate(h, w, a, b)
        i, j, _, _ = window
        return te.sum(grid.covering(window, dy[n, i, j, c] * grid.reciprocal_count(i, j, dy.dtype)), axis=[a, b])

    return te.compute([int(extent) for extent in x_shape], gather, name="avg_pool2d_gradient")
