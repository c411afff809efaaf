"""Words for kernels that work on each row of a matrix by itself: the row is read from memory once, then from the cache.

Sums over a row are kept lane by lane in several vectors, so that rounding stays small and additions overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import PARALLEL_BYTES, Index, TargetInfo, tir

_VECTORS = 4
"""Vectors of partial sums."""
Each = Callable[[Index, int], tirx.Stmt]
"""What to do with the vector of so many lanes at an offset of the row."""


@dataclass(frozen=True)
class Rows:
    """A matrix that is worked on row by row."""

    count: int
    width: int
    lanes: int
    tasks: int
    """Pieces of neighbouring rows that are shared among the threads; 1 if that does not pay."""

    @classmethod
    def of(cls, buffer: tirx.Buffer, buffers: int, info: TargetInfo, threads: int) -> Rows:
        """The rows along the last axis of `buffer`, one of `buffers` equally large ones that the kernel touches."""
        *leading, width = (int(extent) for extent in buffer.shape)
        count = math.prod(leading)
        is_parallel = threads > 1 and 4 * count * width * buffers >= PARALLEL_BYTES
        return cls(count, width, info.lanes, min(threads, count) if is_parallel else 1)

    def each(self, body: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
        """The body for the flat offset of every row."""

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, self.count)
            return tir.loop(last - first, lambda row: tir.bind(row * self.width, body, "origin"), "row", start=first)

        return tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL if self.tasks > 1 else tirx.ForKind.SERIAL)

    def walk(self, body: Each) -> tirx.Stmt:
        """The body for every vector of a row."""
        return tir.spans(self.width, self.lanes, body)


class Fold:
    """One number made of a whole row, e.g. its sum: `combine` of partial results that start at `unit`."""

    def __init__(self, rows: Rows, combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr], unit: tirx.Expr) -> None:
        self._rows, self._combine, self._unit = rows, combine, unit
        self._parts = tir.Registers(1, _VECTORS * rows.lanes)

    @property
    def value(self) -> tirx.Expr:
        """The result, once `result` has run."""
        return self._parts.get(0, 0)

    def start(self) -> tirx.Stmt:
        """Reserve and clear the partial results."""
        lanes = self._rows.lanes
        clear = [self._parts.set(0, part * lanes, tir.splat(self._unit, lanes), lanes) for part in range(_VECTORS)]
        return tir.sequence([self._parts.declare(), *clear])

    def take(self, part: int, value: tirx.Expr, lanes: int) -> tirx.Stmt:
        """Combine a vector with partial result `part`."""
        at = part * self._rows.lanes
        return self._parts.set(0, at, self._combine(self._parts.get(0, at, lanes), value), lanes)

    def result(self) -> tirx.Stmt:
        """Combine the partial results: the upper half with the lower one until one number is left."""
        statements, width = [], _VECTORS * self._rows.lanes // 2
        while width:
            step = min(width, self._rows.lanes)
            for at in range(0, width, step):
                value = self._combine(self._parts.get(0, at, step), self._parts.get(0, at + width, step))
                statements.append(self._parts.set(0, at, value, step))
            width //= 2
        return tir.sequence(statements)


def total(rows: Rows) -> Fold:
    """A sum."""
    return Fold(rows, lambda a, b: a + b, tirx.FloatImm("float32", 0.0))


def largest(rows: Rows) -> Fold:
    """A maximum."""
    return Fold(rows, tirx.max, tirx.FloatImm("float32", 0.0) - tirx.infinity("float32"))


def fold(
    rows: Rows, folds: Sequence[Fold], body: Callable[[Index, int], tuple[Sequence[tirx.Stmt], Sequence[tirx.Expr]]]
) -> tirx.Stmt:
    """One pass over a row: `body(offset, lanes)` gives statements to run, then a vector for each of `folds`."""
    lanes, group = rows.lanes, _VECTORS * rows.lanes

    def vector(part: int, offset: Index, width: int) -> tirx.Stmt:
        statements, values = body(offset, width)
        taken = [item.take(part, value, width) for item, value in zip(folds, values, strict=True)]
        return tir.sequence([*statements, *taken])

    def unrolled(index: Index) -> tirx.Stmt:
        return tir.sequence([vector(part, index * group + part * lanes, lanes) for part in range(_VECTORS)])

    whole, rest = divmod(rows.width, group)
    statements = [item.start() for item in folds]
    statements += [tir.loop(whole, unrolled, "vectors")] if whole else []
    tail = tir.segments(rest, lanes)
    statements += [vector(part % _VECTORS, whole * group + at, width) for part, (at, width) in enumerate(tail)]
    return tir.sequence([*statements, *(item.result() for item in folds)])


def exponential(x: tirx.Expr, lanes: int) -> tirx.Expr:
    """exp(x) for a vector, to about one unit in the last place; exactly zero where the result would be denormal.

    2^n exp(r) with r = x - n log 2 in [-log(2)/2, log(2)/2], log 2 in two parts, and the polynomial of the Cephes
    library's `expf` for exp(r). LLVM would call the C library for each lane.
    """

    def constant(value: float) -> tirx.Expr:
        return tir.splat(tirx.FloatImm("float32", value), lanes)

    integers = "int32" if lanes == 1 else f"int32x{lanes}"
    floats = "float32" if lanes == 1 else f"float32x{lanes}"
    inside = tirx.max(tirx.min(x, constant(_LARGEST)), constant(_SMALLEST))
    n = tirx.floor(inside * constant(1.0 / math.log(2.0)) + constant(0.5))
    # Not of `inside`, which is a number where x is NaN.
    r = x - n * constant(_LOG2_HIGH) - n * constant(_LOG2_LOW)
    value = constant(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        value = value * r + constant(coefficient)
    value = value * r * r + r + constant(1.0)
    exponent = (tirx.Cast(integers, n) + tir.splat(tirx.IntImm("int32", 127), lanes)) * tir.splat(
        tirx.IntImm("int32", 1 << 23), lanes
    )
    scaled = value * tirx.reinterpret(floats, exponent)
    return tirx.Select(x < constant(_SMALLEST), constant(0.0), scaled)


_LARGEST, _SMALLEST = 88.37, -87.33
"""Beyond, exp(x) is no normal float32."""
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
