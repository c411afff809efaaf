"""A contraction as a product of matrices, C[m, n] = sum over k of A[m, k] B[k, n], for each of several groups.

Convolutions are *implicit* products: rows and columns are pixels, taps and channels, and an operand's element is found
from them when it is read (Chetlur et al., cuDNN, 2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.tir import Index, extents

Conditions = list[tirx.Expr]


@dataclass(frozen=True)
class Operand:
    """A matrix that is read from a buffer.

    Attributes:
        buffer: what is read.
        at: (group, row or column, k) -> position in the buffer, and when it is inside; elsewhere there is zero.
        along_k: whether neighbours along k are neighbours in memory, rather than those along rows or columns.
        vector: how many such neighbours always lie together, at a multiple of their number.
    """

    buffer: tirx.Buffer
    at: Callable[[Index, Index, Index], tuple[Index, Conditions]]
    along_k: bool
    vector: int


@dataclass(frozen=True)
class Product:
    """The product of matrices that a problem amounts to.

    Attributes:
        groups: independent products.
        rows, columns, steps: extents of m, n and k.
        left, right: A by (group, m, k) and B by (group, n, k).
        coordinates: (group, m, n) -> where the result has that element.
    """

    groups: int
    rows: int
    columns: int
    steps: int
    left: Operand
    right: Operand
    coordinates: Callable[[Index, Index, Index], Sequence[Index]]


def product_of(problem: Problem) -> Product:
    """Return the problem as a product."""
    return _KINDS[problem.kind](problem)


def vector_of(*multiples: int) -> int:
    """Return the widest vector of float32 that all of these are multiples of."""
    together = math.gcd(*multiples)
    return 4 if together % 4 == 0 else 2 if together % 2 == 0 else 1


def _matmul(problem: Problem) -> Product:
    rows, columns = problem.shape
    return Product(
        1,
        rows,
        columns,
        problem.steps,
        _matrix(problem.left, transposed=problem.kind == "matmul_tn"),
        _matrix(problem.right, transposed=problem.kind != "matmul_nt"),
        lambda _, m, n: [m, n],
    )


def _matrix(buffer: tirx.Buffer, *, transposed: bool) -> Operand:
    """Return a matrix with k along its columns, or along its rows if `transposed`."""
    width = extents(buffer)[1]

    def at(_: Index, row: Index, k: Index) -> tuple[Index, Conditions]:
        return (k * width + row if transposed else row * width + k), []

    return Operand(buffer, at, not transposed, vector_of(width))


class _Convolution:
    """Extents of a convolution, whatever its pass, from the shapes of its input, result and weights.

    Attributes:
        channels, features: of one group.
    """

    def __init__(self, problem: Problem, x: Sequence[int], y: Sequence[int], w: Sequence[int]) -> None:
        self.batch, self.height, self.width = x[:3]
        self.out_height, self.out_width = y[1:3]
        self.taps, self.channels, self.features = (w[0], w[1]), w[2], w[3] // problem.groups
        self.groups, self.stride, self.padding = problem.groups, problem.stride, problem.padding

    def pixel(self, image: Index, row: Index, column: Index, group: Index, channel: Index) -> Index:
        """Return the position in x."""
        return self._of_group((image * self.height + row) * self.width + column, group, channel, self.channels)

    def result(self, pixel: Index, group: Index, feature: Index) -> Index:
        """Return the position in y; pixels are numbered row by row."""
        return self._of_group(pixel, group, feature, self.features)

    def weight(self, tap: Index, channel: Index, group: Index, feature: Index) -> Index:
        """Return the position in w; taps are numbered row by row."""
        return self._of_group(tap * self.channels + channel, group, feature, self.features)

    def _of_group(self, at: Index, group: Index, own: Index, count: int) -> Index:
        return at * (self.groups * count) + group * count + own

    def met(self, out_row: Index, out_column: Index, tap: Index) -> tuple[Index, Index, Conditions]:
        """Return the pixel of x that a tap meets, and when it is none of the padding."""
        row = out_row * self.stride[0] - self.padding[0] + tap // self.taps[1]
        column = out_column * self.stride[1] - self.padding[1] + tap % self.taps[1]
        inside = []
        for axis, (at, results, extent) in enumerate(
            ((row, self.out_height, self.height), (column, self.out_width, self.width))
        ):
            inside += [at >= 0] if self.padding[axis] else []
            last = (results - 1) * self.stride[axis] - self.padding[axis] + self.taps[axis]
            inside += [at < extent] if last > extent else []
        return row, column, inside


def _forward(problem: Problem) -> Product:
    sizes = _Convolution(problem, extents(problem.left), problem.shape, extents(problem.right))
    pixels = (sizes.batch, sizes.out_height, sizes.out_width)

    def left(group: Index, m: Index, k: Index) -> tuple[Index, Conditions]:
        image, i, j = tir.unravel(m, pixels)
        row, column, inside = sizes.met(i, j, k // sizes.channels)
        return sizes.pixel(image, row, column, group, k % sizes.channels), inside

    def right(group: Index, n: Index, k: Index) -> tuple[Index, Conditions]:
        return sizes.weight(k // sizes.channels, k % sizes.channels, group, n), []

    return Product(
        sizes.groups,
        math.prod(pixels),
        sizes.features,
        math.prod(sizes.taps) * sizes.channels,
        Operand(problem.left, left, True, vector_of(sizes.channels)),
        Operand(problem.right, right, False, vector_of(sizes.features)),
        lambda group, m, n: [*tir.unravel(m, pixels), group * sizes.features + n],
    )


def _data_gradient(problem: Problem) -> Product:
    sizes = _Convolution(problem, problem.shape, extents(problem.left), extents(problem.right))
    pixels = (sizes.batch, sizes.height, sizes.width)
    down, across = sizes.stride

    def left(group: Index, m: Index, k: Index) -> tuple[Index, Conditions]:
        image, h, w = tir.unravel(m, pixels)
        tap = k // sizes.features
        row, column = h + sizes.padding[0] - tap // sizes.taps[1], w + sizes.padding[1] - tap % sizes.taps[1]
        inside = [row >= 0, row < sizes.out_height * down, column >= 0, column < sizes.out_width * across]
        inside += [row % down == 0] if down > 1 else []
        inside += [column % across == 0] if across > 1 else []
        pixel = (image * sizes.out_height + row // down) * sizes.out_width + column // across
        return sizes.result(pixel, group, k % sizes.features), inside

    def right(group: Index, n: Index, k: Index) -> tuple[Index, Conditions]:
        return sizes.weight(k // sizes.features, n, group, k % sizes.features), []

    return Product(
        sizes.groups,
        math.prod(pixels),
        sizes.channels,
        math.prod(sizes.taps) * sizes.features,
        Operand(problem.left, left, True, vector_of(sizes.features)),
        Operand(problem.right, right, True, vector_of(sizes.features)),
        lambda group, m, n: [*tir.unravel(m, pixels), group * sizes.channels + n],
    )


def _weight_gradient(problem: Problem) -> Product:
    sizes = _Convolution(problem, extents(problem.left), extents(problem.right), problem.shape)
    pixels = (sizes.batch, sizes.out_height, sizes.out_width)

    def left(group: Index, m: Index, k: Index) -> tuple[Index, Conditions]:
        image, i, j = tir.unravel(k, pixels)
        row, column, inside = sizes.met(i, j, m // sizes.channels)
        return sizes.pixel(image, row, column, group, m % sizes.channels), inside

    def right(group: Index, n: Index, k: Index) -> tuple[Index, Conditions]:
        return sizes.result(k, group, n), []

    def coordinates(group: Index, m: Index, n: Index) -> Sequence[Index]:
        tap = m // sizes.channels
        return [tap // sizes.taps[1], tap % sizes.taps[1], m % sizes.channels, group * sizes.features + n]

    return Product(
        sizes.groups,
        math.prod(sizes.taps) * sizes.channels,
        sizes.features,
        math.prod(pixels),
        Operand(problem.left, left, False, vector_of(sizes.channels)),
        Operand(problem.right, right, False, vector_of(sizes.features)),
        coordinates,
    )


def _batched(problem: Problem) -> Product:
    rank = len(problem.shape)
    result, summed, last = problem.axes[:rank], problem.axes[rank], rank - 1
    factors = [(problem.left, problem.factors[0].indices), (problem.right, problem.factors[1].indices)]
    if _holds(factors[0][1], result[last]):
        factors.reverse()
    (row,) = (axis for axis in range(last) if not _holds(factors[1][1], result[axis]))
    shared = [axis for axis in range(last) if axis != row]
    batch = [problem.shape[axis] for axis in shared]

    def values(group: Index, mine: Index, own: int) -> dict[int, Index]:
        """Return the values by axis of the result."""
        return {**dict(zip(shared, tir.unravel(group, batch) if batch else [], strict=True)), own: mine}

    def operand(buffer: tirx.Buffer, indices: Sequence[tirx.Expr], own: int) -> Operand:
        def at(group: Index, mine: Index, k: Index) -> tuple[Index, Conditions]:
            place, position = values(group, mine, own), tir.number(0)
            for index, extent in zip(indices, extents(buffer), strict=True):
                is_summed = index.same_as(summed)
                value = k if is_summed else next(place[axis] for axis in place if index.same_as(result[axis]))
                position = position * extent + value
            return position, []

        along_k = bool(indices[-1].same_as(summed))
        together = along_k or bool(indices[-1].same_as(result[own]))
        return Operand(buffer, at, along_k, vector_of(extents(buffer)[-1]) if together else 1)

    def coordinates(group: Index, m: Index, n: Index) -> Sequence[Index]:
        place = {**values(group, m, row), last: n}
        return [place[axis] for axis in range(rank)]

    return Product(
        math.prod(batch),
        problem.shape[row],
        problem.shape[last],
        problem.steps,
        operand(*factors[0], row),
        operand(*factors[1], last),
        coordinates,
    )


def _holds(indices: Sequence[tirx.Expr], axis: tirx.Var) -> bool:
    return any(index.same_as(axis) for index in indices)


_KINDS: dict[str, Callable[[Problem], Product]] = {
    "conv2d": _forward,
    "conv2d_data_gradient": _data_gradient,
    "conv2d_weight_gradient": _weight_gradient,
    "matmul": _matmul,
    "matmul_nt": _matmul,
    "matmul_tn": _matmul,
    "batched_matmul": _batched,
}
