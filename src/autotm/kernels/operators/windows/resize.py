"""Images resized, and the gradient, along two axes of a tensor, as TE functions.

Positions are ratios of whole numbers, so that no rounding decides which pixel is the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import te, tirx

MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")
METHODS = {"nearest_neighbor": (0, 0), "linear": (0, 1), "cubic": (-1, 2)}
"""What a result reads, from the pixel at or before its position: first and last offset."""


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
        """By the names that Relax's `resize2d` gives to modes, methods and roundings."""
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
        """(pixel, weight) of everything that a result is made of; pixels outside are the nearest inside."""
        position = result * self.step + self.first
        if self.method == "nearest_neighbor":
            return [(self._inside(self._nearest(position)), tirx.const(1.0, dtype))]
        pixel = tirx.floordiv(position, self.unit)
        part = tirx.Cast(dtype, tirx.floormod(position, self.unit)) * tirx.const(1.0 / self.unit, dtype)
        weights = _linear(part, dtype) if self.method == "linear" else _cubic(part, self.alpha, dtype)
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

    def _reach(self) -> tuple[int, int]:
        """The first and last pixel that a result may read, from the pixel at or before its position."""
        return (0, 1) if self.method == "nearest_neighbor" else METHODS[self.method]

    def first_reader(self, pixel: tirx.Expr) -> tirx.Expr:
        """A result before which none reads a pixel, not below zero."""
        if self.step == 0:
            return pixel * 0
        _, last = self._reach()
        return tirx.max(-tirx.floordiv(self.first - (pixel - last) * self.unit, self.step), 0)

    @property
    def readers(self) -> int:
        """Results from the first reader of any pixel to its last one, at most."""
        if self.step == 0:
            return self.results
        before, after = self._reach()
        most = 1
        for pixel in range(self.extent):
            first = max(-((self.first - (pixel - after) * self.unit) // self.step), 0)
            # Past the last pixel, all results read it.
            end = ((pixel - before + 1) * self.unit - self.first) // self.step
            last = self.results - 1 if pixel == self.extent - 1 else min(end, self.results - 1)
            most = max(most, last - first + 1)
        return most


def _linear(part: tirx.Expr, dtype: str) -> list[tirx.Expr]:
    return [tirx.const(1.0, dtype) - part, part]


def _cubic(part: tirx.Expr, alpha: float, dtype: str) -> list[tirx.Expr]:
    """Keys' cubic convolution (1981) with a = `alpha`."""

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
    """`x` with axes `first` and `first` + 1 resized."""
    shape = [int(extent) for extent in x.shape]
    shape[first : first + 2] = [line.results for line in lines]

    def element(*at: tirx.Var) -> tirx.Expr:
        rows, columns = (line.taps(at[first + number], x.dtype) for number, line in enumerate(lines))
        terms = [
            x(*at[:first], row, column, *at[first + 2 :]) * (above * across)
            for row, above in rows
            for column, across in columns
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    return te.compute(shape, element, name="resize")


def resize_gradient(dy: te.Tensor, axis: int, line: Line) -> te.Tensor:
    """The gradient along one axis: each pixel's, summed over the results that read it."""
    shape = [int(extent) for extent in dy.shape]
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
