"""The (steps, features) operand of a contraction, and panels of it: one tile of features, dense, step after step.

In place, the rows of a tile lie a whole row of features apart; at powers of two they evict each other from the
caches. A panel is read in one stream. Weights of a data gradient are turned on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from autotm.kernels.code import Index, tir


class Operand(Protocol):
    """What panels are made of."""

    @property
    def steps(self) -> int:
        """Rows."""

    @property
    def parts(self) -> int:
        """Independent parts that one panel can be filled in."""

    @property
    def cycles(self) -> float:
        """Estimated cycles for one vector of a panel."""

    def fill(self, part: Index, feature: Index, width: int, target: tirx.Buffer, base: Index, lanes: int) -> tirx.Stmt:
        """Fill one part of the panel of features [feature, feature + width) that starts at `base`."""


@dataclass(frozen=True)
class RowMajor:
    """A matrix in place; its panels are copies."""

    buffer: tirx.Buffer
    steps: int
    features: int
    cycles: float = 4.0

    @property
    def parts(self) -> int:
        """Spans of rows."""
        return -(-self.steps // 128)

    def fill(self, part: Index, feature: Index, width: int, target: tirx.Buffer, base: Index, lanes: int) -> tirx.Stmt:
        """Copy a span of rows."""
        first, last = tir.share(part, self.parts, self.steps)
        source = self.buffer, first * self.features + feature, self.features
        return copy_rows(source, (target, base + first * width, width), last - first, width, lanes)


@dataclass(frozen=True)
class Taps:
    """The taps one phase of a data gradient meets: every `stride`-th from `first`, last one first."""

    first: int
    stride: int
    count: int

    def weight(self, index: Index) -> Index:
        """Row or column of the weights that tap `index` uses."""
        return self.first + self.stride * (self.count - 1 - index)


@dataclass(frozen=True)
class Turned:
    """(R,S,C,K) weights as (taps, K) steps by C features."""

    buffer: tirx.Buffer
    shape: tuple[int, int, int, int]
    vertical: Taps
    horizontal: Taps
    cycles: float = 8.0

    @property
    def parts(self) -> int:
        """One for each tap."""
        return self.vertical.count * self.horizontal.count

    @property
    def steps(self) -> int:
        """Taps times the channels of dy."""
        return self.parts * self.shape[3]

    def fill(self, part: Index, feature: Index, width: int, target: tirx.Buffer, base: Index, lanes: int) -> tirx.Stmt:
        """Turn the weights of one tap."""
        _, columns, channels, inner = self.shape
        u, v = part // self.horizontal.count, part % self.horizontal.count
        tap = self.vertical.weight(u) * columns + self.horizontal.weight(v)
        origin = tap * (channels * inner) + feature * inner
        start = base + part * (inner * width)
        return turn_rows((self.buffer, origin, inner), (target, start, width), width, inner, lanes)


Place = tuple[tirx.Buffer, Index, int]
"""Buffer, first element, elements from row to row."""


def copy_rows(source: Place, target: Place, rows: Index, columns: int, lanes: int) -> tirx.Stmt:
    """target[i, j] = source[i, j] for i < rows, j < columns."""

    def row(index: Index) -> tirx.Stmt:
        begin, end = source[1] + index * source[2], target[1] + index * target[2]
        pieces = tir.segments(columns, lanes)
        return tir.sequence([tir.store(target[0], end + o, tir.load(source[0], begin + o, n), n) for o, n in pieces])

    return tir.loop(rows, row, "row")


def turn_rows(source: Place, target: Place, rows: int, columns: int, lanes: int) -> tirx.Stmt:
    """target[j, i] = source[i, j] for i < rows, j < columns: squares of `lanes` in registers, then smaller ones."""

    def turn(offset: Index, n: int) -> tirx.Stmt:
        """All columns of `n` rows."""
        spans = [(columns // n, n, 0)] if columns >= n else []
        done = columns // n * n
        spans += [(1, m, done + o) for o, m in tir.segments(columns - done, n)]
        squares = []
        for count, m, at in spans:

            def square(index: Index, m: int = m, at: int = at) -> tirx.Stmt:
                k = at + index * m
                origin = source[0], source[1] + offset * source[2] + k, source[2]
                return _turn(origin, (target[0], target[1] + k * target[2] + offset, target[2]), n, m)

            squares.append(tir.loop(count, square, "square"))
        return tir.sequence(squares)

    whole = rows // lanes
    statements = [tir.loop(whole, lambda vector: turn(vector * lanes, lanes), "vector")] if whole else []
    return tir.sequence([*statements, *(turn(whole * lanes + o, n) for o, n in tir.segments(rows % lanes, lanes))])


def _turn(source: Place, target: Place, rows: int, columns: int) -> tirx.Stmt:
    """target[j, i] = source[i, j] for i < rows, j < columns, both powers of two."""
    if rows == columns and rows > 1:
        return _turn_square(source, target, rows)

    def element(i: int, j: int) -> tirx.Stmt:
        return tir.store(target[0], target[1] + j * target[2] + i, tir.load(source[0], source[1] + i * source[2] + j))

    return tir.sequence([element(i, j) for j in range(columns) for i in range(rows)])


def _turn_square(source: Place, target: Place, size: int) -> tirx.Stmt:
    """Turn a square in vector registers: log2(size) rounds that swap the off-diagonal blocks of half the size."""
    statements: list[tirx.Stmt] = []

    def named(value: tirx.Expr) -> tirx.Var:
        # A name, not a buffer: TVM's passes would look at every access.
        vector = tirx.Var("row", f"float32x{size}")
        statements.append(tirx.Bind(vector, value))
        return vector

    rows = [named(tir.load(source[0], source[1] + i * source[2], size)) for i in range(size)]
    distance = size // 2
    while distance:
        upper = [lane if not lane & distance else size + lane - distance for lane in range(size)]
        lower = [lane + distance if not lane & distance else size + lane for lane in range(size)]
        following = []
        for i in range(size):
            first, second = (i, i + distance) if not i & distance else (i - distance, i)
            order = [tirx.IntImm("int32", lane) for lane in (lower if i & distance else upper)]
            following.append(named(tirx.Shuffle([rows[first], rows[second]], order)))
        rows = following
        distance //= 2
    statements += [tir.store(target[0], target[1] + j * target[2], rows[j], size) for j in range(size)]
    return tir.sequence(statements)
