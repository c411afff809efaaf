"""Contractions whose result is pixels x features (convolution, data gradient, product), shared among threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.schedules.panels import Operand, Padding, RegisterTile, RowMajor, sum_chains
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.target import Cut, TargetInfo, register_tiles, tile_cycles
from autotm.kernels.tir import Code, Index

# Contractions whose result is pixels x features: convolution, data gradient, matrix product.
#
#     result[n, i, j, k] = sum over taps t and positions q of source[n, i, j; t, q] * panel[t, q, k]
#
# A tap is one row of the window; its horizontal positions and channels lie one after the other in NHWC and HWIO, so
# they are one run of q. A register tile is a rectangle of pixels times a few vectors of features.

_LEAST_PIXELS = 24  # With fewer pixels, an operand is read in place if it can be.
_MANY_TILES = 16
"""With so many tiles along a row, computing part of the last one twice takes little time."""


@dataclass(frozen=True)
class Source:
    """Where pixel (n, i, j) begins: `base` + n, i, j times the strides.

    The tap below lies `tap` further, the one to its right `across`.
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


@dataclass(frozen=True)
class FeatureTiles:
    """Neighbouring tiles of equally many features.

    Attributes:
        first: number of the first tile.
        count: of tiles.
        start: the first tile's first feature.
        width: features of a tile.
    """

    first: int
    count: int
    start: int
    width: int


def feature_tiles(pixels: Pixels, info: TargetInfo) -> list[FeatureTiles]:
    """Return the feature tiles by their width, in order: the last one may hold part of a vector."""
    vectors = register_tiles(pixels.rows, pixels.columns, pixels.features, pixels.steps, info).vectors
    tail = pixels.features % info.lanes
    whole = vectors.count - (1 if tail else 0)
    longer = min(vectors.longer, whole)
    counts = [(longer, vectors.size * info.lanes), (whole - longer, (vectors.size - 1) * info.lanes)]
    if tail:
        last = vectors.size if vectors.longer == vectors.count else vectors.size - 1
        counts.append((1, (last - 1) * info.lanes + tail))
    classes, first, start = [], 0, 0
    for count, width in counts:
        if count:
            classes.append(FeatureTiles(first, count, start, width))
            first, start = first + count, start + count * width
    return classes


class PixelTiles:
    """The register tiles of a contraction: their cut, and the code that computes a range of them."""

    def __init__(self, pixels: Pixels, problem: Problem, info: TargetInfo) -> None:
        self.pixels, self.problem, self.info = pixels, problem, info
        self.tiles = register_tiles(pixels.rows, pixels.columns, pixels.features, pixels.steps, info)
        self.classes = feature_tiles(pixels, info)
        self.places = pixels.batch * self.tiles.rows.count * self.tiles.columns.count
        self.panel_size = pixels.steps * max(each.width for each in self.classes)

    @property
    def reads_in_place(self) -> bool:
        """Whether panels would not pay, as the (steps, features) operand is dense enough or read too few times."""
        few = self.tiles.vectors.count == 1 or self.pixels.count < _LEAST_PIXELS
        return not self.pixels.steps or (isinstance(self.pixels.operand, RowMajor) and few)

    def compute(
        self, panels: tirx.Buffer | None, tiles: tuple[Index, Index], places: tuple[Index, Index], own: Index
    ) -> tirx.Stmt:
        """Emit code for tiles of features [low, high) of places [first, last).

        Each panel is made at `own` of `panels` when it is needed; without that, the operand is read in place.
        """
        (low, high), (first, last) = tiles, places
        operand = self.pixels.operand

        def features(tiles: FeatureTiles) -> tirx.Stmt:
            end = tiles.first + tiles.count
            if isinstance(low, int) and isinstance(high, int):
                from_tile, to_tile = max(low, tiles.first), min(high, end)
            else:
                from_tile = tirx.max(tir.number(low), tir.number(tiles.first))
                to_tile = tirx.min(tir.number(high), tir.number(end))

            def body(tile: Index) -> tirx.Stmt:
                feature, width = tiles.start + (tile - tiles.first) * tiles.width, tiles.width
                panel = feature if panels is None else own
                each = tir.loop(
                    last - first, lambda p: self._place(panels, p, feature, width, panel), "place", start=first
                )
                if panels is None:
                    return each

                def fill(part: Index) -> tirx.Stmt:
                    return operand.fill(part, feature, width, panels, own, self.info.lanes)

                return tir.sequence([tir.loop(operand.parts, fill, "part"), each])

            return tir.loop(to_tile - from_tile, body, "features", start=from_tile)

        return tir.sequence([features(tiles) for tiles in self.classes])

    def _place(self, panels: tirx.Buffer | None, place: Index, feature: Index, width: int, panel: Index) -> tirx.Stmt:
        tiles = self.tiles
        column, above = place % tiles.columns.count, place // tiles.columns.count
        row, image = above % tiles.rows.count, above // tiles.rows.count
        # Tiles of a second length would be a second kernel to compile.
        is_long = tiles.columns.count >= _MANY_TILES and self.problem.repeats
        pick_columns = tir.pick_overlapping if is_long else tir.pick

        def rows(i: Index, height: int) -> tirx.Stmt:
            def columns(j: Index, breadth: int) -> tirx.Stmt:
                return tir.bind_all(
                    (image, i, j, feature, panel),
                    "image row column feature panel",
                    lambda *where: self._tile(panels, where, (height, breadth, width)),
                )

            return pick_columns(tiles.columns, column, columns)

        return tir.pick(tiles.rows, row, rows)

    def _tile(self, panels: tirx.Buffer | None, where: tuple[Index, ...], size: tuple[int, int, int]) -> tirx.Stmt:
        (image, i, j, feature, panel), (height, breadth, width) = where, size
        source, pixels = self.pixels.source, self.pixels
        operand, pitch = (pixels.operand.buffer, pixels.features) if panels is None else (panels, width)
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


# How threads share a pixels x features contraction, and make its operands ready piece by piece.
#
# Each thread takes one block of pixel rows after the other. Of a padded source it makes only the lines that the block
# meets, a strip that stays in the second-level cache; of the (steps, features) operand only one panel at a time. Copies
# of whole operands would go through memory, and were not faster in any network.

_MANY_PIXELS = 512
"""Pixels for each panel that are enough: making it takes little time, compared with reading it."""
_FEW_PIXELS = 192
"""With fewer pixels for each panel, making it takes longer than fetching pixels again that do not stay in the cache."""
_BYTES_PER_CYCLE = 8
"""Bytes per cycle that a thread fetches from behind the second-level cache."""


def contract_strips(
    parts: Sequence[Pixels], problem: Problem, info: TargetInfo, threads: int, padding: Padding | None = None
) -> Code:
    """Generate code that computes the parts one after the other, in the same memory.

    In each part, threads share blocks of pixel rows and groups of features. With `padding`, places of a part's source
    are those of the whole padded grid.
    """
    emitters = [_Emitter(pixels, padding, problem, info, threads) for pixels in parts]
    strips = tir.workspace(max(emitter.strip_size * emitter.tasks for emitter in emitters), "strips")
    panels = tir.workspace(max(emitter.panel_size * emitter.tasks for emitter in emitters), "panels")
    spaces = [strips] if padding else []
    spaces += [panels] if any(emitter.panel_size for emitter in emitters) else []
    return Code(tir.sequence([emitter.code(strips, panels) for emitter in emitters]), tuple(spaces))


@dataclass(frozen=True)
class _Strips:
    """Lines of a padded source that lie in memory at a time: those that a block of pixel rows meets."""

    padding: Padding
    pixels: Pixels
    cut: Cut
    """Division of an image's rows into tiles."""

    @property
    def _grid(self) -> tuple[int, int]:
        """Lines in an image, elements in a line."""
        grid = self.padding.within(self.padding.grid.buffer)
        return grid.rows, grid.row

    def lines(self, first: Index, last: Index) -> tuple[Index, Index]:
        """Return the lines [top, bottom) that tile rows [first, last), counted over all images, meet."""
        (rows, row), source, count = self._grid, self.pixels.source, self.cut.count
        apart, base = source.row // row, source.base // row
        top = first // count * rows + self._start(first % count) * apart + base
        end = (self._start((last - 1) % count + 1) - 1) * apart + base
        return top, (last - 1) // count * rows + end + self.pixels.taps[0]

    def _start(self, tile: Index) -> Index:
        size, longer = self.cut.size, self.cut.longer
        if isinstance(tile, int):
            return tile * (size - 1) + min(tile, longer)
        return tile * (size - 1) + tirx.min(tile, tir.number(longer))

    def most(self, blocks: int, places: int) -> int:
        """Return the elements that the lines of any block take."""
        lines = [self.lines(*tir.share(block, blocks, places)) for block in range(blocks)]
        return max(bottom - top for top, bottom in lines) * self._grid[1]


class _Emitter:
    def __init__(
        self, pixels: Pixels, padding: Padding | None, problem: Problem, info: TargetInfo, threads: int
    ) -> None:
        self.pixels, self.problem, self.info = pixels, problem, info
        self.whole = PixelTiles(pixels, problem, info)
        tiles = self.whole.tiles
        # Strips are whole lines; without them a block may begin anywhere.
        self.abreast = tiles.columns.count if padding else 1
        self.places = self.whole.places // self.abreast
        self.blocks, self.groups = _division(self.whole, self.abreast, threads)
        self.tasks = min(threads, self.blocks * self.groups)
        self.strips = _Strips(padding, pixels, tiles.rows) if padding else None
        self.strip_size = self.strips.most(self.blocks, self.places) if self.strips else 0
        self.panel_size = 0 if self.whole.reads_in_place else self.whole.panel_size

    def code(self, strips: tirx.Buffer, panels: tirx.Buffer) -> tirx.Stmt:
        used = panels if self.panel_size else None
        units = self.blocks * self.groups
        return tir.in_tasks(self.tasks, units, lambda unit, task: self._unit(unit, task, strips, used), "unit")

    def _unit(self, unit: Index, task: Index, strips: tirx.Buffer, panels: tirx.Buffer | None) -> tirx.Stmt:
        """Emit one block of pixel rows, for one group of features."""
        group, block = unit // self.blocks, unit % self.blocks
        tiles = tir.share(group, self.groups, self.whole.tiles.vectors.count)

        def rows(first: Index, last: Index) -> tirx.Stmt:
            def compute(part: PixelTiles) -> tirx.Stmt:
                places = first * self.abreast, last * self.abreast
                return part.compute(panels, tiles, places, task * self.panel_size)

            if self.strips is None:
                return compute(self.whole)
            return self._in_strip(self.strips, (first, last), (strips, task * self.strip_size), compute)

        return tir.bind_all(tir.share(block, self.blocks, self.places), "first last", rows)

    def _in_strip(
        self,
        strips: _Strips,
        rows: tuple[Index, Index],
        place: tuple[tirx.Buffer, Index],
        compute: Callable[[PixelTiles], tirx.Stmt],
    ) -> tirx.Stmt:
        """Make the lines that some tile rows meet, then compute from them."""
        buffer, base = place
        target = strips.padding.within(buffer)

        def lines(top: Index, bottom: Index) -> tirx.Stmt:
            def line(index: Index) -> tirx.Stmt:
                return strips.padding.line(index, target, base + (index - top) * target.row, self.info.lanes)

            begin = self.pixels.source.base + base - top * target.row
            source = dataclasses.replace(self.pixels.source, buffer=buffer, base=begin)
            part = PixelTiles(dataclasses.replace(self.pixels, source=source), self.problem, self.info)
            return tir.sequence([tir.loop(bottom - top, line, "line", start=top), compute(part)])

        return tir.bind_all(strips.lines(*rows), "top bottom", lines)


def _division(whole: PixelTiles, abreast: int, threads: int) -> tuple[int, int]:
    """Return blocks of tile rows of `abreast` places and groups of features: least time of the busiest thread."""
    pixels, tiles = whole.pixels, whole.tiles
    places, features = whole.places // abreast, tiles.vectors.count
    source_bytes = 4 * pixels.count * min(pixels.run, max(pixels.source.column, 1))
    tile = tile_cycles(tiles.rows.size * tiles.columns.size, tiles.vectors.size, pixels.steps)
    panel = 0.0 if whole.reads_in_place else pixels.steps * tiles.vectors.size * pixels.operand.cycles
    # Each fits half the second-level cache; an eighth, where that leaves enough pixels for a panel to pay.
    fewest, most = (-(-parts * source_bytes // whole.info.l2_bytes) for parts in (2, 8))
    least = max(1, min(fewest, pixels.count // _FEW_PIXELS), min(most, pixels.count // _MANY_PIXELS))
    least = min(places, least)
    candidates = []
    for groups in range(1, min(features, threads) + 1):
        for blocks in {least, *range(least, threads), -(-least // threads) * threads}:
            if blocks > places:
                continue
            rounds, share = -(-blocks * groups // threads), -(-features // groups)
            work = rounds * share * (-(-places // blocks) * abreast * tile + panel)
            traffic = groups * source_bytes + 4 * blocks * pixels.steps * pixels.features
            candidates.append((work + traffic / (_BYTES_PER_CYCLE * threads), blocks, groups))
    _, blocks, groups = min(candidates)
    return blocks, groups
