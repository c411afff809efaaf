"""Squares of Winograd's F(2x2, 3x3): where they lie, and how they are transformed; see `contraction_winograd`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.schedules.contraction.parts import Grid, Problem

WINDOW, SIDE, RESULTS = 3, 4, 2
"""Sides of the weights, of a square of the source, and of its results."""
ELEMENTS = SIDE * SIDE

Put = Callable[[int, Index, tirx.Expr, int], tirx.Stmt]
"""Store a vector of an element of a transformed square: (element, first channel, value, lanes)."""
Get = Callable[[int, Index, int], tirx.Expr]
"""A vector of an element of a square's products: (element, first feature of the tile, lanes)."""
Transform = Callable[[list[tirx.Expr]], list[tirx.Expr]]


@dataclass(frozen=True)
class Squares:
    """4x4 squares of a source that overlap by two, one for each 2x2 results."""

    problem: Problem
    source: Grid
    origin: tuple[int, int]
    """How far the first square begins above and left of the source."""
    down: int
    across: int

    @classmethod
    def of(cls, problem: Problem, origin: tuple[int, int]) -> Squares:
        """Those of all results; the source is the problem's left operand."""
        _, rows, columns, _ = problem.shape
        source = Grid(problem.left, *tir.extents(problem.left))
        return cls(problem, source, origin, -(-rows // RESULTS), -(-columns // RESULTS))

    @property
    def count(self) -> int:
        """Over all images."""
        return self.source.batch * self.down * self.across

    def place(self, square: Index) -> tuple[Index, Index, Index]:
        """Image, row and column of squares."""
        return square // (self.down * self.across), square // self.across % self.down, square % self.across

    # --- the source --------------------------------------------------------------------------------------------------
    def transform(self, square: Index, put: Put, lanes: int) -> tirx.Stmt:
        """B' d B of one square; pixels outside the source are zeros."""
        image, i, j = self.place(square)
        source = self.source
        row, column = i * RESULTS - self.origin[0], j * RESULTS - self.origin[1]
        begin = image * source.image + row * source.row + column * source.channels

        def channels(row: Index, column: Index, begin: Index) -> tirx.Stmt:
            inner = tir.spans(source.channels, lanes, lambda at, n: self._inner(begin + at, at, put, n))
            border = tir.spans(
                source.channels, lanes, lambda at, n: self._border((row, column), begin + at, at, put, n)
            )
            return tir.choose(self._inside(row, column, SIDE), inner, border)

        return tir.bind_all((row, column, begin), "row column begin", channels)

    def _inside(self, row: Index, column: Index, side: int = 1) -> tirx.Expr:
        """Whether a square of pixels that begins there lies in the source."""
        source = self.source
        return tirx.all(row >= 0, row <= source.rows - side, column >= 0, column <= source.columns - side)

    def _pixel(self, begin: Index, number: int, n: int) -> tirx.Expr:
        step = number // SIDE * self.source.row + number % SIDE * self.source.channels
        return tir.load(self.source.buffer, begin + step, n)

    def _inner(self, begin: Index, at: Index, put: Put, n: int) -> tirx.Stmt:
        def stored(element: int, value: tirx.Expr) -> tirx.Stmt:
            return put(element, at, value, n)

        return both_ways((SIDE, SIDE), differences, lambda number: self._pixel(begin, number, n), stored, n)

    def _border(self, corner: tuple[Index, Index], begin: Index, at: Index, put: Put, n: int) -> tirx.Stmt:
        pixels = tir.Registers(ELEMENTS, n)

        def fetch(number: int) -> tirx.Stmt:
            exists = self._inside(corner[0] + number // SIDE, corner[1] + number % SIDE)
            fetched = pixels.set(number, 0, self._pixel(begin, number, n), n)
            return tir.choose(exists, fetched, pixels.set(number, 0, tir.zeros(n), n))

        def stored(element: int, value: tirx.Expr) -> tirx.Stmt:
            return put(element, at, value, n)

        transformed = both_ways((SIDE, SIDE), differences, lambda number: pixels.get(number, 0, n), stored, n)
        return tir.sequence([pixels.declare(), *(fetch(number) for number in range(ELEMENTS)), transformed])

    # --- the results -------------------------------------------------------------------------------------------------
    def finish(self, square: Index, feature: Index, width: int, product: Get, lanes: int) -> tirx.Stmt:
        """A' m A of one square, and the epilogue of those of its results that exist."""
        image, i, j = self.place(square)

        def vectors(row: Index, column: Index) -> tirx.Stmt:
            return tir.sequence(
                [vector((image, row, column, feature + at), at, n) for at, n in tir.segments(width, lanes)]
            )

        def vector(where: tuple[Index, ...], at: int, n: int) -> tirx.Stmt:
            values = tir.Registers(RESULTS * RESULTS, n)
            gathered = both_ways(
                (SIDE, RESULTS),
                sums,
                lambda number: product(number, at, n),
                lambda number, value: values.set(number, 0, value, n),
                n,
            )
            stores = [self._result(where, number, values, n) for number in range(RESULTS * RESULTS)]
            return tir.sequence([values.declare(), gathered, *stores])

        return tir.bind_all((i * RESULTS, j * RESULTS), "row column", vectors)

    def _result(self, where: tuple[Index, ...], number: int, values: tir.Registers, n: int) -> tirx.Stmt:
        (image, row, column, feature), (below, beside) = where, divmod(number, RESULTS)
        row, column = row + below, column + beside
        _, rows, columns, _ = self.problem.shape

        def lanes(first: Index) -> tirx.Stmt:
            def lane(index: Index) -> tirx.Stmt:
                at = image, row, column, feature + index
                return self.problem.finish(at, lambda: values.get(number, index), first + index)

            return tir.loop(n, lane, "lane", tirx.ForKind.VECTORIZED)

        outside = [row < rows] if below and rows % RESULTS else []
        outside += [column < columns] if beside and columns % RESULTS else []
        exists = tirx.all(*outside) if outside else True
        position = self.problem.position((image, row, column, feature))
        return tir.choose(exists, tir.bind(position, lanes, "first"), None)


def both_ways(
    sides: tuple[int, int],
    transform: Transform,
    get: Callable[[int], tirx.Expr],
    put: Callable[[int, tirx.Expr], tirx.Stmt],
    lanes: int,
) -> tirx.Stmt:
    """Transform the columns, then the rows, of a square of vectors: from side `sides[0]` to side `sides[1]`."""
    before, after = sides
    half = tir.Registers(after * before, lanes)
    statements = [half.declare()]
    for column in range(before):
        values = transform([get(row * before + column) for row in range(before)])
        statements += [half.set(row * before + column, 0, value, lanes) for row, value in enumerate(values)]
    for row in range(after):
        values = transform([half.get(row * before + column, 0, lanes) for column in range(before)])
        statements += [put(row * after + column, value) for column, value in enumerate(values)]
    return tir.sequence(statements)


def differences(d: list[tirx.Expr]) -> list[tirx.Expr]:
    """B' d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def spread(g: list[tirx.Expr], lanes: int) -> list[tirx.Expr]:
    """G g, for vectors of `lanes`."""
    half = tir.splat(tirx.FloatImm("float32", 0.5), lanes)
    outer = g[0] + g[2]
    return [g[0], (outer + g[1]) * half, (outer - g[1]) * half, g[2]]


def sums(m: list[tirx.Expr]) -> list[tirx.Expr]:
    """A' m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
