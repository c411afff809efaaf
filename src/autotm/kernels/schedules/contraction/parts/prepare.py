"""Pixels made ready: a grid with zeros around it."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, tir


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


@dataclass(frozen=True)
class Padding:
    """A grid with zero pixels around it (negative padding cuts pixels off), whole or some of its lines."""

    grid: Grid
    sides: tuple[int, int, int, int]
    """(top, left, bottom, right)."""

    def within(self, buffer: tirx.Buffer) -> Grid:
        """The padded grid, if it lay in `buffer`."""
        top, left, bottom, right = self.sides
        grid = self.grid
        return Grid(buffer, grid.batch, grid.rows + top + bottom, grid.columns + left + right, grid.channels)

    def whole(self, name: str, lanes: int) -> tuple[Grid, tirx.Stmt]:
        """All of it, and the code that fills it."""
        shape = self.within(self.grid.buffer)
        target = self.within(tir.workspace(shape.batch * shape.image, name))
        code = tir.loop(
            target.batch * target.rows,
            lambda index: self.line(index, target, index * target.row, lanes),
            "line",
            tirx.ForKind.PARALLEL,
        )
        return target, code

    def line(self, index: Index, target: Grid, to: Index, lanes: int) -> tirx.Stmt:
        """Fill line `index`, counted over all images, at `to` of the target's buffer."""
        top, left, bottom, right = self.sides
        grid = self.grid
        kept = grid.columns + min(left, 0) + min(right, 0)
        image, row = index // target.rows, index % target.rows
        origin = image * grid.image + (row - top) * grid.row + max(-left, 0) * grid.channels
        inside = tirx.all(row >= top, row < top + grid.rows) if top > 0 or bottom > 0 else True
        before, between, after = (pixels * grid.channels for pixels in (max(left, 0), kept, max(right, 0)))
        filled = tir.sequence(
            [
                fill(target.buffer, to, before, lanes),
                copy(grid.buffer, origin, target.buffer, to + before, between, lanes),
                fill(target.buffer, to + before + between, after, lanes),
            ]
        )
        return tir.choose(inside, filled, fill(target.buffer, to, target.row, lanes))


def fill(buffer: tirx.Buffer, start: Index, count: int, lanes: int) -> tirx.Stmt:
    """Zeros."""
    return tir.spans(count, lanes, lambda at, width: tir.store(buffer, start + at, tir.zeros(width), width))


def copy(source: tirx.Buffer, origin: Index, target: tirx.Buffer, start: Index, count: int, lanes: int) -> tirx.Stmt:
    """`count` elements from one flat place to another."""
    return tir.spans(
        count,
        lanes,
        lambda at, width: tir.store(target, start + at, tir.load(source, origin + at, width), width),
    )
