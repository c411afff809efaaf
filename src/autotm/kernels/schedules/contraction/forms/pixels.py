"""Contractions whose result is pixels x features: convolution, data gradient, matrix product.

    result[n, i, j, k] = sum over taps t and positions q of source[n, i, j; t, q] * panel[t, q, k]

A tap is one row of the window; its horizontal positions and channels lie one after the other in NHWC and HWIO, so
they are one run of q. A register tile is a rectangle of pixels times a few vectors of features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, TargetInfo, register_tiles, tir
from autotm.kernels.schedules.contraction.parts import Operand, Problem, RegisterTile, RowMajor, sum_chains

_LEAST_PIXELS = 24
_MANY_TILES = 16
"""With so many tiles along a row, computing part of the last one twice costs nothing to speak of."""


@dataclass(frozen=True)
class Source:
    """Where pixel (n, i, j) begins: `base` + n, i, j times the strides.

    The tap below lies `tap` further, the one beside it `across`.
    """

    buffer: tirx.Buffer
    base: Index
    image: int
    row: int
    column: int
    tap: int
    across: int = 0


@dataclass(frozen=True)
class Pixels:
    """One pixels x features contraction."""

    batch: int
    rows: int
    columns: int
    features: int
    taps: tuple[int, int]
    """Vertical and horizontal; one horizontal tap if their runs are taken as one."""
    run: int
    source: Source
    operand: Operand
    coordinates: Callable[[Index, Index, Index, Index], tuple[Index, ...]]
    """Pixel (n, i, j) and feature to indices of the result."""

    @property
    def steps(self) -> int:
        """Products per element of the result."""
        return self.taps[0] * self.taps[1] * self.run

    @property
    def count(self) -> int:
        """Pixels in all."""
        return self.batch * self.rows * self.columns


def feature_tiles(pixels: Pixels, info: TargetInfo) -> list[tuple[int, int, int]]:
    """(first tile, number of tiles, width in features) of each class of feature tiles, in order."""
    vectors = register_tiles(pixels.rows, pixels.columns, pixels.features, pixels.steps, info).vectors
    tail = pixels.features % info.lanes
    classes = []
    whole = vectors.count - (1 if tail else 0)
    longer = min(vectors.longer, whole)
    if longer:
        classes.append((0, longer, vectors.size * info.lanes))
    if whole > longer:
        classes.append((longer, whole - longer, (vectors.size - 1) * info.lanes))
    if tail:
        last = vectors.size if vectors.longer == vectors.count else vectors.size - 1
        classes.append((whole, 1, (last - 1) * info.lanes + tail))
    return classes


class PixelTiles:
    """The register tiles of a contraction: their cut, and the code that computes a range of them.

    Args:
        pixels: the contraction.
        problem: what it belongs to.
        info: the processor.
    """

    def __init__(self, pixels: Pixels, problem: Problem, info: TargetInfo) -> None:
        self.pixels, self.problem, self.info = pixels, problem, info
        self.tiles = register_tiles(pixels.rows, pixels.columns, pixels.features, pixels.steps, info)
        self.classes = feature_tiles(pixels, info)
        self.places = pixels.batch * self.tiles.rows.count * self.tiles.columns.count
        self.panel_size = pixels.steps * max(width for _, _, width in self.classes)

    @property
    def reads_in_place(self) -> bool:
        """Whether panels would not pay, as the (steps, features) operand is dense enough or read too few times."""
        few = self.tiles.vectors.count == 1 or self.pixels.count < _LEAST_PIXELS
        return not self.pixels.steps or (isinstance(self.pixels.operand, RowMajor) and few)

    def compute(
        self, panels: tirx.Buffer | None, tiles: tuple[Index, Index], places: tuple[Index, Index], own: Index
    ) -> tirx.Stmt:
        """Code for tiles of features [low, high) of places [first, last).

        Each panel is made at `own` of `panels` when it is needed; without that, the operand is read in place.
        """
        (low, high), (first, last) = tiles, places
        operand, statements, start = self.pixels.operand, [], 0
        for begin, count, width in self.classes:
            if isinstance(low, int) and isinstance(high, int):
                from_tile, to_tile = max(low, begin), min(high, begin + count)
            else:
                from_tile = tirx.max(tir.number(low), tir.number(begin))
                to_tile = tirx.min(tir.number(high), tir.number(begin + count))

            def body(tile: Index, begin: int = begin, width: int = width, start: int = start) -> tirx.Stmt:
                feature = start + (tile - begin) * width
                panel = feature if panels is None else own
                each = tir.loop(
                    last - first, lambda p: self._place(panels, p, feature, width, panel), "place", start=first
                )
                if panels is None:
                    return each

                def fill(part: Index) -> tirx.Stmt:
                    return operand.fill(part, feature, width, panels, own, self.info.lanes)

                return tir.sequence([tir.loop(operand.parts, fill, "part"), each])

            statements.append(tir.loop(to_tile - from_tile, body, "features", start=from_tile))
            start += count * width
        return tir.sequence(statements)

    def _place(self, panels: tirx.Buffer | None, place: Index, feature: Index, width: int, panel: Index) -> tirx.Stmt:
        tiles = self.tiles
        column, above = place % tiles.columns.count, place // tiles.columns.count
        row, image = above % tiles.rows.count, above // tiles.rows.count
        # A second length of tiles would be a second kernel to compile.
        is_long = tiles.columns.count >= _MANY_TILES and self.problem.repeats
        pick_columns = tir.pick_overlapping if is_long else tir.pick

        return tir.pick(
            tiles.rows,
            row,
            lambda i, height: pick_columns(
                tiles.columns,
                column,
                lambda j, breadth: tir.bind_all(
                    (image, i, j, feature, panel),
                    "image row column feature panel",
                    lambda *where: self._tile(panels, where[:4], (height, breadth, width), where[4]),
                ),
            ),
        )

    def _tile(
        self,
        panels: tirx.Buffer | None,
        where: tuple[Index, Index, Index, Index],
        size: tuple[int, int, int],
        panel: Index,
    ) -> tirx.Stmt:
        image, i, j, feature = where
        source, pixels = self.pixels.source, self.pixels
        operand, pitch = (pixels.operand.buffer, pixels.features) if panels is None else (panels, size[2])
        height, breadth, width = size
        spots = [(a, b) for a in range(height) for b in range(breadth)]
        tile = RegisterTile(len(spots), width, self.info.lanes)
        origin = source.base + image * source.image + i * source.row + j * source.column

        def step(at: Index, row: Index) -> tirx.Stmt:
            def scalar(m: int) -> tirx.Expr:
                a, b = spots[m]
                return tir.load(source.buffer, at + (a * source.row + b * source.column))

            return tile.multiply(scalar, lambda o, n: tir.load(operand, row + o, n))

        def chain(tap: Index, first: Index, last: Index) -> tirx.Stmt:
            def run(at: Index, row: Index) -> tirx.Stmt:
                return tir.loop(last - first, lambda q: step(at + q, row + q * pitch), "step", start=first)

            return tir.bind(
                origin + tap // pixels.taps[1] * source.tap + tap % pixels.taps[1] * source.across,
                lambda at: tir.bind(panel + tap * (pixels.run * pitch), lambda row: run(at, row), "row"),
                "at",
            )

        def coordinates(m: int, offset: Index) -> tuple[Index, ...]:
            a, b = spots[m]
            return pixels.coordinates(image, i + a, j + b, feature + offset)

        problem, corner = self.problem, self.problem.position(pixels.coordinates(0, 0, 0, 0))

        def finish(first: Index) -> tirx.Stmt:
            def position(m: int, offset: Index) -> Index:
                return first + (problem.position(pixels.coordinates(0, *spots[m], 0)) - corner) + offset

            return total.finish(problem, coordinates, position)

        code, total = sum_chains(tile, pixels.taps[0] * pixels.taps[1], pixels.run, chain)
        first = problem.position(pixels.coordinates(image, i, j, feature))
        return tir.sequence([*code, tir.bind(first, finish, "first")])
