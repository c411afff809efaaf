"""Operands made ready: padded or spread pixels, packed and turned weights, each in a workspace of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.tir import Index


@dataclass(frozen=True)
class Grid:
    """Pixels (n, i, j) of `channels` each in a flat buffer."""

    buffer: tirx.Buffer
    batch: int
    rows: int
    columns: int
    channels: int

    @property
    def row(self) -> int:
        """Elements from one row to the next."""
        return self.columns * self.channels

    @property
    def image(self) -> int:
        """Elements from one image to the next."""
        return self.rows * self.row


def pad_pixels(grid: Grid, padding: tuple[int, int, int, int], name: str, lanes: int) -> tuple[Grid, tirx.Stmt]:
    """The grid with zero pixels around it (negative padding cuts pixels off), and the code that fills it."""
    top, left, bottom, right = padding
    rows, columns = grid.rows + top + bottom, grid.columns + left + right
    target = Grid(tir.workspace(grid.batch * rows * columns * grid.channels, name), grid.batch, rows, columns, grid.channels)
    kept = grid.columns + min(left, 0) + min(right, 0)

    def line(index: Index) -> tirx.Stmt:
        image, row = index // rows, index % rows
        to = index * target.row
        origin = image * grid.image + (row - top) * grid.row + max(-left, 0) * grid.channels
        inside = tirx.all(row >= top, row < top + grid.rows) if top > 0 or bottom > 0 else True
        filled = tir.sequence(
            [
                fill(target.buffer, to, max(left, 0) * grid.channels, lanes),
                copy(grid.buffer, origin, target.buffer, to + max(left, 0) * grid.channels, kept * grid.channels, lanes),
                fill(target.buffer, to + (max(left, 0) + kept) * grid.channels, max(right, 0) * grid.channels, lanes),
            ]
        )
        return tir.choose(inside, filled, fill(target.buffer, to, target.row, lanes))

    return target, tir.loop(grid.batch * rows, line, "line", tirx.ForKind.PARALLEL)


def fill(buffer: tirx.Buffer, start: Index, count: int, lanes: int) -> tirx.Stmt:
    """Zeros."""
    return _spans(count, lanes, lambda at, width: tir.store(buffer, start + at, tir.zeros(width), width))


def copy(source: tirx.Buffer, origin: Index, target: tirx.Buffer, start: Index, count: int, lanes: int) -> tirx.Stmt:
    """`count` elements from one flat place to another."""
    return _spans(
        count,
        lanes,
        lambda at, width: tir.store(target, start + at, tir.load(source, origin + at, width), width),
    )


def pack_panels(
    source: tirx.Buffer, steps: int, features: int, classes: list[tuple[int, int, int]], lanes: int
) -> tuple[tirx.Buffer, tirx.Stmt]:
    """A row-major (steps, features) operand cut into panels of one feature tile each, and the code that fills them."""
    target = tir.workspace(steps * features, "panels")

    def row(step: Index) -> tirx.Stmt:
        statements, start = [], 0
        for _, count, width in classes:

            def tile(number: Index, start: int = start, width: int = width) -> tirx.Stmt:
                feature = start + number * width
                to = feature * steps + step * width
                return copy(source, step * features + feature, target, to, width, lanes)

            statements.append(tir.loop(count, tile, "tile"))
            start += count * width
        return tir.sequence(statements)

    return target, tir.loop(steps, row, "row", tirx.ForKind.PARALLEL)


@dataclass(frozen=True)
class Taps:
    """The taps one phase of a data gradient meets: every `stride`-th from `first`, last one first."""

    first: int
    stride: int
    count: int

    def weight(self, index: Index) -> Index:
        """Row or column of the weights that tap `index` uses."""
        return self.first + self.stride * (self.count - 1 - index)


def turn_panels(
    source: tirx.Buffer,
    shape: tuple[int, int, int, int],
    taps: tuple[Taps, Taps],
    target: tirx.Buffer,
    base: int,
    classes: list[tuple[int, int, int]],
    lanes: int,
) -> tirx.Stmt:
    """Fill panels from `base` on with (R,S,C,K) weights turned to (taps, K) steps by C features."""
    _, columns, channels, features = shape
    vertical, horizontal = taps
    steps = vertical.count * horizontal.count * features

    def tap(index: Index) -> tirx.Stmt:
        u, v = index // horizontal.count, index % horizontal.count
        origin = (vertical.weight(u) * columns + horizontal.weight(v)) * (channels * features)
        statements, start = [], 0
        for _, count, width in classes:

            def tile(number: Index, start: int = start, width: int = width) -> tirx.Stmt:
                channel = start + number * width
                to = base + channel * steps + index * (features * width)
                return _turn(source, origin + channel * features, features, target, to, width, lanes)

            statements.append(tir.loop(count, tile, "tile"))
            start += count * width
        return tir.sequence(statements)

    return tir.loop(vertical.count * horizontal.count, tap, "tap", tirx.ForKind.PARALLEL)


def _turn(
    source: tirx.Buffer, origin: Index, features: int, target: tirx.Buffer, to: Index, width: int, lanes: int
) -> tirx.Stmt:
    def column(k: Index) -> tirx.Stmt:
        statements = []
        for offset, count in tir.segments(width, lanes):

            def lane(number: Index, offset: int = offset) -> tirx.Stmt:
                value = tir.load(source, origin + (offset + number) * features + k)
                return tir.store(target, to + k * width + offset + number, value)

            statements.append(tir.loop(count, lane, "lane", tirx.ForKind.VECTORIZED))
        return tir.sequence(statements)

    return tir.loop(features, column, "k")


def _spans(count: int, lanes: int, write: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
    whole = count // lanes
    statements = []
    if whole:
        statements.append(tir.loop(whole, lambda i: write(i * lanes, lanes), "vector"))
    statements += [write(whole * lanes + offset, width) for offset, width in tir.segments(count % lanes, lanes)]
    return tir.sequence(statements)
