"""Pooling, depthwise convolution and resizing with their gradients: windows that slide over an image."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx

from autotm.kernels.tir import extents, reduce_axes

Pair = tuple[int, int]
Padding = tuple[int, int, int, int]


@dataclass(frozen=True)
class Axis:
    """Windows along one axis: window o covers `window` elements from o*stride - before on, `dilation` apart.

    `counted` are the elements of padding before and after that a mean counts as elements.
    """

    extent: int
    window: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    counted: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        """Refuse an axis without windows, or with windows of padding only."""
        if max(self.before, self.after) >= self.span:
            raise ValueError(f"padding ({self.before}, {self.after}) must be less than the window, {self.span}")
        if self.windows < 1:
            raise ValueError(
                f"window {self.window} does not fit in {self.extent} elements padded by ({self.before}, {self.after})"
            )

    @property
    def span(self) -> int:
        """Elements from the first one of a window to behind its last one."""
        return (self.window - 1) * self.dilation + 1

    @property
    def windows(self) -> int:
        """Number of windows."""
        return (self.extent + self.before + self.after - self.span) // self.stride + 1

    @property
    def covering(self) -> int:
        """The most windows that cover one element."""
        return math.ceil(self.span / self.stride)

    def inside(self, element: tirx.Expr) -> list[tirx.Expr]:
        """Return the conditions that an element of a window is no padding, but for those that always hold."""
        conditions = []
        if self.before:
            conditions.append(element >= 0)
        if (self.windows - 1) * self.stride - self.before + self.span > self.extent:
            conditions.append(element < self.extent)
        return conditions

    def covers(self, window: tirx.Expr, offset: tirx.Expr) -> list[tirx.Expr]:
        """Return the conditions that a window exists and covers its element, but for those that always hold."""
        conditions = []
        if self.before // self.stride < self.covering - 1:
            conditions.append(window >= 0)
        if (self.extent - 1 + self.before) // self.stride >= self.windows:
            conditions.append(window < self.windows)
        if self.span % self.stride:
            conditions.append(offset < self.span)
        if self.dilation > 1:
            conditions.append(offset % self.dilation == 0)
        return conditions

    def count(self, window: tirx.Expr) -> tirx.Expr | int:
        """Return the elements of an undilated window that count for its mean."""
        start = window * self.stride - self.before
        end: tirx.Expr | int = start + self.window
        last = (self.windows - 1) * self.stride - self.before + self.window
        before, after = self.counted
        if last <= self.extent + after and self.before <= before:
            return self.window
        return tirx.min(end, self.extent + after) - tirx.max(start, -before)


@dataclass(frozen=True)
class Grid:
    """The windows of a pooling over (n, h, w, c)."""

    batch: int
    channels: int
    rows: Axis
    columns: Axis

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        pool: Pair,
        stride: Pair,
        padding: Padding,
        dilation: Pair = (1, 1),
        counted: Padding = (0, 0, 0, 0),
    ) -> Grid:
        """Return the grid over an input of `shape`; padding, and what of it counts, are (top, left, bottom, right)."""
        n, h, w, c = (int(extent) for extent in shape)
        top, left, bottom, right = padding
        rows = Axis(h, pool[0], stride[0], top, bottom, dilation[0], counted[::2])
        return cls(n, c, rows, Axis(w, pool[1], stride[1], left, right, dilation[1], counted[1::2]))

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """(n, rows of windows, columns of windows, c)."""
        return self.batch, self.rows.windows, self.columns.windows, self.channels

    def window_axes(self) -> list[tirx.IterVar]:
        """Return reduction axes over the positions of a window."""
        return reduce_axes("rs", (self.rows.window, self.columns.window))

    def element(self, i: tirx.Expr, j: tirx.Expr, r: tirx.Expr, s: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Return the row and column, perhaps in the padding, that window (i, j) reads at its position (r, s)."""
        rows, columns = self.rows, self.columns
        r, s = (at if axis.dilation == 1 else at * axis.dilation for at, axis in ((r, rows), (s, columns)))
        return i * rows.stride + r - rows.before, j * columns.stride + s - columns.before

    def inside(self, h: tirx.Expr, w: tirx.Expr, value: Callable[[], tirx.Expr], otherwise: tirx.Expr) -> tirx.Expr:
        """Return `value` inside the image, else `otherwise`."""
        return _where([*self.rows.inside(h), *self.columns.inside(w)], value(), otherwise)

    def gathered(
        self, h: tirx.Expr, w: tirx.Expr, term: Callable[..., tirx.Expr], further: Sequence[tirx.IterVar] = ()
    ) -> tirx.Expr:
        """Return the sum over all windows that cover element (h, w), and over `further` axes.

        `term(i, j, u, v)` is what window (i, j) adds to the element that it reads at its position (u, v).
        """
        a, b = reduce_axes("ab", (self.rows.covering, self.columns.covering))
        # A window that may not exist, and the position in it at which it would read the element.
        i = (h + self.rows.before) // self.rows.stride - a
        j = (w + self.columns.before) // self.columns.stride - b
        u = h + self.rows.before - i * self.rows.stride
        v = w + self.columns.before - j * self.columns.stride
        value = term(i, j, u, v)
        zero = tirx.const(0, value.dtype if hasattr(value, "dtype") else str(value.ty))
        value = _where([*self.rows.covers(i, u), *self.columns.covers(j, v)], value, zero)
        return te.sum(value, axis=[a, b, *further])

    def reciprocal_count(self, i: tirx.Expr, j: tirx.Expr, dtype: str) -> tirx.Expr:
        """Return 1 / (positions of window (i, j) that count)."""
        count = self.rows.count(i) * self.columns.count(j)
        if isinstance(count, int):
            return tirx.const(1.0 / count, dtype)
        return tirx.const(1.0, dtype) / tirx.Cast(dtype, count)


def _where(conditions: list[tirx.Expr], value: tirx.Expr, otherwise: tirx.Expr) -> tirx.Expr:
    return tirx.if_then_else(tirx.all(*conditions), value, otherwise) if conditions else value


# Pooling over windows, and its gradients, as TE functions: NHWC activations, float32, stride (sh, sw).
#
# Padding is (top, left, bottom, right). A maximum ignores it; a mean divides by the positions inside the image, and by
# those of the padding that are `counted`. Windows of a maximum may have elements `dilation` apart. Schedules recognise
# the blocks by the names given here.

_INT8_MAX = 127  # Places in a window that int8 can hold.


def _least(dtype: str) -> tirx.Expr:
    """Return the least value of a type: minus infinity for floating-point numbers."""
    is_real = str(dtype).startswith("float")
    return tirx.const(0, dtype) - tirx.infinity(dtype) if is_real else tirx.min_value(dtype)


_LARGEST = te.comm_reducer(
    lambda some, other: tirx.max(some, other),  # noqa: PLW0108 - TVM asks a function of Python's how many it takes
    _least,
    name="max",
)
"""Maximum that ignores NaN; of -inf alone it is -inf, where TVM's own gives the lowest finite number."""


def max_pool2d(x: te.Tensor, pool: Pair, stride: Pair, padding: Padding, dilation: Pair = (1, 1)) -> te.Tensor:
    """Return the maximum over each window; x is (n, h, w, c)."""
    grid = Grid.of(x.shape, pool, stride, padding, dilation)
    r, s = grid.window_axes()

    def body(n: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> tirx.Expr:
        h, w = grid.element(i, j, r, s)
        return _LARGEST(grid.inside(h, w, lambda: x[n, h, w, c], _least(x.dtype)), axis=[r, s])

    return te.compute(grid.output_shape, body, name="max_pool2d")


def max_pool2d_gradient(
    x: te.Tensor, y: te.Tensor, dy: te.Tensor, pool: Pair, stride: Pair, padding: Padding, dilation: Pair = (1, 1)
) -> te.Tensor:
    """Compute the gradient of x, (n, h, w, c): a window's dy goes to its first maximum in row-major order.

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

    def gather(n: tirx.Var, h: tirx.Var, w: tirx.Var, c: tirx.Var) -> tirx.Expr:
        def slope(i: tirx.Expr, j: tirx.Expr, u: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
            u, v = (at if apart == 1 else at // apart for at, apart in zip((u, v), dilation, strict=True))
            here = index[n, i, j, c] == tirx.Cast(dtype, u * pool[1] + v)
            return tirx.Select(here, dy[n, i, j, c], tirx.const(0, dy.dtype))

        return grid.gathered(h, w, slope)

    return te.compute(extents(x), gather, name="max_pool2d_gradient")


def avg_pool2d(x: te.Tensor, pool: Pair, stride: Pair, padding: Padding, counted: Padding = (0, 0, 0, 0)) -> te.Tensor:
    """Return the mean over the positions of each window that count; x is (n, h, w, c)."""
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
    dy: te.Tensor, x_shape: Sequence[int], pool: Pair, stride: Pair, padding: Padding, counted: Padding = (0, 0, 0, 0)
) -> te.Tensor:
    """Compute the gradient of x, `x_shape`: the sum of dy / positions that count over the windows that cover it."""
    grid = Grid.of(x_shape, pool, stride, padding, counted=counted)

    def gather(n: tirx.Var, h: tirx.Var, w: tirx.Var, c: tirx.Var) -> tirx.Expr:
        return grid.gathered(h, w, lambda i, j, *_: dy[n, i, j, c] * grid.reciprocal_count(i, j, dy.dtype))

    return te.compute(tuple(map(int, x_shape)), gather, name="avg_pool2d_gradient")


# Convolution of each channel by itself, and its gradients, as TE functions: NHWC, weights (R,S,1,K), float32.
#
# With as many groups as channels nothing is left to contract but the window, so these are windows like pooling's, whose
# schedules keep vectors of channels in registers. Features [c M, (c+1) M) come of channel c, M = K / C.


def depthwise_fits(window: Pair, padding: Padding) -> bool:
    """Return whether every window reaches into the image, as the expressions here need."""
    return max(padding[0], padding[2]) < window[0] and max(padding[1], padding[3]) < window[1]


def depthwise_conv2d(x: te.Tensor, w: te.Tensor, stride: Pair, padding: Padding) -> te.Tensor:
    """Compute cross-correlation: (N,H,W,C) with (R,S,1,K) gives (N,P,Q,K)."""
    rows, columns, _, features = extents(w)
    grid = Grid.of(x.shape, (rows, columns), stride, padding)
    multiple = features // grid.channels
    r, s = grid.window_axes()

    def body(n: tirx.Var, i: tirx.Var, j: tirx.Var, k: tirx.Var) -> tirx.Expr:
        h, v = grid.element(i, j, r, s)
        return te.sum(_term(grid, x, (n, h, v, k), multiple) * w[r, s, 0, k], axis=[r, s])

    return te.compute((*grid.output_shape[:3], features), body, name="depthwise_conv2d")


def depthwise_conv2d_data_gradient(
    dy: te.Tensor, w: te.Tensor, x_shape: Sequence[int], stride: Pair, padding: Padding
) -> te.Tensor:
    """Compute the gradient with respect to the input: (N,P,Q,K) with (R,S,1,K) gives `x_shape`, (N,H,W,C)."""
    rows, columns, _, features = extents(w)
    grid = Grid.of(x_shape, (rows, columns), stride, padding)
    multiple = features // grid.channels
    m = te.reduce_axis((0, multiple), "m")

    def gather(n: tirx.Var, h: tirx.Var, v: tirx.Var, c: tirx.Var) -> tirx.Expr:
        k, further = (c, ()) if multiple == 1 else (c * multiple + m, (m,))
        return grid.gathered(h, v, lambda i, j, r, s: dy[n, i, j, k] * w[r, s, 0, k], further)

    return te.compute(tuple(map(int, x_shape)), gather, name="depthwise_conv2d_data_gradient")


def depthwise_conv2d_weight_gradient(
    x: te.Tensor, dy: te.Tensor, w_shape: Sequence[int], stride: Pair, padding: Padding
) -> te.Tensor:
    """Compute the gradient with respect to the weights: (N,H,W,C) with (N,P,Q,K) gives `w_shape`, (R,S,1,K)."""
    rows, columns, _, features = w_shape
    grid = Grid.of(x.shape, (rows, columns), stride, padding)
    multiple = features // grid.channels
    n, i, j = reduce_axes("nij", extents(dy)[:3])

    def body(r: tirx.Var, s: tirx.Var, _: tirx.Var, k: tirx.Var) -> tirx.Expr:
        h, v = grid.element(i, j, r, s)
        return te.sum(_term(grid, x, (n, h, v, k), multiple) * dy[n, i, j, k], axis=[n, i, j])

    return te.compute(tuple(w_shape), body, name="depthwise_conv2d_weight_gradient")


def _term(grid: Grid, x: te.Tensor, at: tuple[tirx.Expr, ...], multiple: int) -> tirx.Expr:
    """Return the element of `x` that feature `at[-1]` reads from its channel; zero outside the image."""
    n, h, v, k = at
    channel = k if multiple == 1 else k // multiple
    return grid.inside(h, v, lambda: x(n, h, v, channel), tirx.const(0.0, x.dtype))


# Images resized, and the gradient, along two axes of a tensor, as TE functions.
#
# Positions are ratios of whole numbers, so that no rounding decides which pixel is the nearest.

MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")
METHODS = {"nearest_neighbor": (0, 0), "linear": (0, 1), "cubic": (-1, 2)}
"""First and last pixel that a result reads, as offsets from the pixel at or before its position, by method."""


@dataclass(frozen=True)
class Line:
    """How one axis of `extent` pixels becomes one of `results`: result o lies at (step * o + first) / unit."""

    extent: int
    results: int
    step: int
    first: int
    unit: int
    method: str
    rounding: str
    alpha: float

    @classmethod
    def of(cls, extent: int, results: int, mode: str, method: str, rounding: str, alpha: float) -> Line:
        """Make a line from the names that Relax's `resize2d` gives to modes, methods and roundings."""
        step, first, unit = 2 * extent, extent - results, 2 * results
        if mode == "align_corners":
            step, first, unit = extent - 1, 0, max(results - 1, 1)
        elif mode == "asymmetric":
            step, first, unit = extent, 0, results
        elif mode == "tf_half_pixel_for_nn":
            first = extent
        elif mode == "pytorch_half_pixel" and results == 1:
            step, first, unit = 0, 0, 1
        rounding = rounding or ("round" if mode == "align_corners" else "floor")
        return cls(extent, results, step, first, unit, method, rounding, alpha)

    def taps(self, result: tirx.Expr, dtype: str) -> list[tuple[tirx.Expr, tirx.Expr]]:
        """Return (pixel, weight) of everything that a result is made of; pixels outside are the nearest inside."""
        position = result * self.step + self.first
        if self.method == "nearest_neighbor":
            return [(self._inside(self._nearest(position)), tirx.const(1.0, dtype))]
        pixel = tirx.floordiv(position, self.unit)
        part = tirx.Cast(dtype, tirx.floormod(position, self.unit)) * tirx.const(1.0 / self.unit, dtype)
        is_linear = self.method == "linear"
        weights = [tirx.const(1.0, dtype) - part, part] if is_linear else _cubic(part, self.alpha, dtype)
        first, _ = METHODS[self.method]
        return [(self._inside(pixel + (first + number)), weight) for number, weight in enumerate(weights)]

    def _nearest(self, position: tirx.Expr) -> tirx.Expr:
        if self.rounding == "ceil":
            return -tirx.floordiv(-position, self.unit)
        if self.rounding == "floor":
            return tirx.floordiv(position, self.unit)
        if self.rounding == "round_prefer_floor":
            return -tirx.floordiv(self.unit - 2 * position, 2 * self.unit)
        return tirx.floordiv(2 * position + self.unit, 2 * self.unit)

    def _inside(self, pixel: tirx.Expr) -> tirx.Expr:
        return tirx.max(tirx.min(pixel, self.extent - 1), 0)

    @property
    def _reach(self) -> tuple[int, int]:
        """The first and last pixel that a result may read, from the pixel at or before its position."""
        return (0, 1) if self.method == "nearest_neighbor" else METHODS[self.method]

    def first_reader(self, pixel: tirx.Expr) -> tirx.Expr:
        """Return a result before which none reads a pixel, not below zero."""
        if self.step == 0:
            return pixel * 0
        _, last = self._reach
        return tirx.max(-tirx.floordiv(self.first - (pixel - last) * self.unit, self.step), 0)

    @property
    def readers(self) -> int:
        """Results from the first reader of any pixel to its last one, at most."""
        if self.step == 0:
            return self.results
        before, after = self._reach
        most = 1
        for pixel in range(self.extent):
            first = max(-((self.first - (pixel - after) * self.unit) // self.step), 0)
            # Past the last pixel, all results read it.
            end = ((pixel - before + 1) * self.unit - self.first) // self.step
            last = self.results - 1 if pixel == self.extent - 1 else min(end, self.results - 1)
            most = max(most, last - first + 1)
        return most


def _cubic(part: tirx.Expr, alpha: float, dtype: str) -> list[tirx.Expr]:
    """Compute Keys' cubic convolution (1981) with a = `alpha`."""

    def polynomial(*coefficients: float) -> tirx.Expr:
        value = tirx.const(coefficients[0], dtype)
        for coefficient in coefficients[1:]:
            value = value * part + tirx.const(coefficient, dtype)
        return value

    a = alpha
    return [
        polynomial(a, -2 * a, a, 0.0),
        polynomial(a + 2, -(a + 3), 0.0, 1.0),
        polynomial(-(a + 2), 2 * a + 3, -a, 0.0),
        polynomial(-a, a, 0.0, 0.0),
    ]


def resize(x: te.Tensor, first: int, lines: tuple[Line, Line]) -> te.Tensor:
    """Compute `x` with axes `first` and `first` + 1 resized."""
    shape = list(extents(x))
    shape[first : first + 2] = [line.results for line in lines]

    def element(*at: tirx.Var) -> tirx.Expr:
        rows, columns = (line.taps(at[first + number], x.dtype) for number, line in enumerate(lines))
        terms = [
            x(*at[:first], row, column, *at[first + 2 :]) * (above * across)
            for row, above in rows
            for column, across in columns
        ]
        return functools.reduce(operator.add, terms)

    return te.compute(shape, element, name="resize")


def resize_gradient(dy: te.Tensor, axis: int, line: Line) -> te.Tensor:
    """Return the gradient along one axis: each pixel's, summed over the results that read it."""
    shape = list(extents(dy))
    shape[axis] = line.extent
    reader = te.reduce_axis((0, line.readers), "reader")

    def element(*at: tirx.Var) -> tirx.Expr:
        result = line.first_reader(at[axis]) + reader
        zero = tirx.const(0.0, dy.dtype)
        weight = zero
        for pixel, share in line.taps(result, dy.dtype):
            weight = weight + tirx.Select(pixel == at[axis], share, zero)
        value = dy(*at[:axis], tirx.min(result, line.results - 1), *at[axis + 1 :])
        return te.sum(tirx.Select(result < line.results, weight * value, zero), axis=reader)

    return te.compute(shape, element, name="resize_gradient")
