"""Where pooling windows lie: which input a window position reads, and which windows cover an input position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx

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
        """From the first element of a window to behind its last one."""
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
        """Conditions, none that always holds, under which an element a window reaches is not padding."""
        conditions = []
        if self.before:
            conditions.append(element >= 0)
        if (self.windows - 1) * self.stride - self.before + self.span > self.extent:
            conditions.append(element < self.extent)
        return conditions

    def covers(self, window: tirx.Expr, offset: tirx.Expr) -> list[tirx.Expr]:
        """Conditions, none that always holds, under which a candidate window exists and covers its element."""
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
        """Elements of an undilated window that count for its mean."""
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
        """The grid over an input of `shape`; padding, and what of it counts, are (top, left, bottom, right)."""
        n, h, w, c = (int(extent) for extent in shape)
        top, left, bottom, right = padding
        rows = Axis(h, pool[0], stride[0], top, bottom, dilation[0], counted[::2])
        return cls(n, c, rows, Axis(w, pool[1], stride[1], left, right, dilation[1], counted[1::2]))

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """(n, rows of windows, columns of windows, c)."""
        return self.batch, self.rows.windows, self.columns.windows, self.channels

    def window_axes(self) -> tuple[tirx.IterVar, tirx.IterVar]:
        """Reduction axes over the positions of a window."""
        return te.reduce_axis((0, self.rows.window), "r"), te.reduce_axis((0, self.columns.window), "s")

    def covering_axes(self) -> tuple[tirx.IterVar, tirx.IterVar]:
        """Reduction axes over the windows that may cover one element."""
        return te.reduce_axis((0, self.rows.covering), "a"), te.reduce_axis((0, self.columns.covering), "b")

    def element(self, i: tirx.Expr, j: tirx.Expr, r: tirx.Expr, s: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Row and column, perhaps in the padding, that window (i, j) reads at its position (r, s)."""
        rows, columns = self.rows, self.columns
        r, s = (_times(at, axis.dilation) for at, axis in ((r, rows), (s, columns)))
        return i * rows.stride + r - rows.before, j * columns.stride + s - columns.before

    def inside(self, h: tirx.Expr, w: tirx.Expr, value: Callable[[], tirx.Expr], otherwise: tirx.Expr) -> tirx.Expr:
        """`value` inside the image, else `otherwise`."""
        return _where([*self.rows.inside(h), *self.columns.inside(w)], value(), otherwise)

    def candidate(
        self, h: tirx.Expr, w: tirx.Expr, a: tirx.Expr, b: tirx.Expr
    ) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr]:
        """Window (i, j), perhaps not existing, and the position (u, v) in it at which it would read (h, w)."""
        i = (h + self.rows.before) // self.rows.stride - a
        j = (w + self.columns.before) // self.columns.stride - b
        u = h + self.rows.before - i * self.rows.stride
        v = w + self.columns.before - j * self.columns.stride
        return i, j, u, v

    def covering(self, window: tuple[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr], value: tirx.Expr) -> tirx.Expr:
        """`value` where the candidate window exists and covers the element, else zero."""
        i, j, u, v = window
        zero = tirx.const(0, value.dtype if hasattr(value, "dtype") else str(value.ty))
        return _where([*self.rows.covers(i, u), *self.columns.covers(j, v)], value, zero)

    def reciprocal_count(self, i: tirx.Expr, j: tirx.Expr, dtype: str = "float32") -> tirx.Expr:
        """1 / (positions of window (i, j) that count)."""
        count = self.rows.count(i) * self.columns.count(j)
        if isinstance(count, int):
            return tirx.const(1.0 / count, dtype)
        return tirx.const(1.0, dtype) / tirx.Cast(dtype, count)


def _times(value: tirx.Expr, factor: int) -> tirx.Expr:
    return value if factor == 1 else value * factor


def _where(conditions: list[tirx.Expr], value: tirx.Expr, otherwise: tirx.Expr) -> tirx.Expr:
    return tirx.if_then_else(tirx.all(*conditions), value, otherwise) if conditions else value
