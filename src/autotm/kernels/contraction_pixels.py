"""Contractions whose result is pixels x features: convolution, data gradient, matrix product.

    result[n, i, j, k] = sum over taps t and positions q of source[n, i, j; t, q] * panel[t, q, k]

A tap is one row of the window; its horizontal positions and channels lie one after the other in NHWC and HWIO, so
they are one run of q. A register tile is a rectangle of pixels times a few vectors of features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.contraction_problem import Problem
from autotm.kernels.contraction_tile import RegisterTile
from autotm.kernels.contraction_tiles import CHAIN_STEPS, register_tiles
from autotm.kernels.target import TargetInfo
from autotm.kernels.tir import Index


@dataclass(frozen=True)
class Source:
    """Where pixel (n, i, j) begins: `base` + n, i, j times the strides; a tap below lies `tap` further."""

    buffer: tirx.Buffer
    base: int
    image: int
    row: int
    column: int
    tap: int


@dataclass(frozen=True)
class Panels:
    """The (steps, features) operand: row-major from `base`, or packed tile by tile of features."""

    buffer: tirx.Buffer
    base: int
    packed: bool


@dataclass(frozen=True)
class Pixels:
    """One pixels x features contraction."""

    batch: int
    rows: int
    columns: int
    features: int
    taps: int
    run: int
    source: Source
    panels: Panels
    coordinates: Callable[[Index, Index, Index, Index], tuple[Index, ...]]
    """Pixel (n, i, j) and feature to indices of the result."""

    @property
    def steps(self) -> int:
        """Products per element of the result."""
        return self.taps * self.run


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


def contract_pixels(pixels: Pixels, problem: Problem, info: TargetInfo, threads: int) -> tirx.Stmt:
    """A parallel loop over blocks of pixels (that stay in the second-level cache) and groups of features."""
    return _Emitter(pixels, problem, info).tasks(threads)


class _Emitter:
    def __init__(self, pixels: Pixels, problem: Problem, info: TargetInfo) -> None:
        self.pixels, self.problem, self.info = pixels, problem, info
        self.tiles = register_tiles(pixels.rows, pixels.columns, pixels.features, pixels.steps, info)
        self.classes = feature_tiles(pixels, info)
        self.places = pixels.batch * self.tiles.rows.count * self.tiles.columns.count

    def tasks(self, threads: int) -> tirx.Stmt:
        blocks, groups = self._division(threads)
        features = self.tiles.vectors.count

        def task(index: Index) -> tirx.Stmt:
            group, block = index // blocks, index % blocks
            first, last = tir.share(block, blocks, self.places)
            low, high = tir.share(group, groups, features)
            return tir.bind(
                first, lambda a: tir.bind(last, lambda b: self._features(low, high, a, b), "last"), "first"
            )

        return tir.loop(blocks * groups, task, "task", tirx.ForKind.PARALLEL)

    def _division(self, threads: int) -> tuple[int, int]:
        pixels = self.pixels
        source_bytes = 4 * pixels.batch * pixels.rows * pixels.columns * max(pixels.source.column, pixels.run)
        panel_bytes = 4 * pixels.steps * pixels.features
        features = self.tiles.vectors.count
        smallest = min(self.places, -(-2 * source_bytes // self.info.l2_bytes))
        best, least = (1, 1), (float("inf"), float("inf"))
        for groups in range(1, min(features, threads) + 1):
            for blocks in {smallest, *(threads * m for m in range(1, smallest // threads + 2)), *range(1, threads)}:
                if not smallest <= blocks <= self.places:
                    continue
                rounds = -(-blocks * groups // threads)
                work = rounds * -(-self.places // blocks) * -(-features // groups) / (self.places * features)
                cost = (round(work * threads, 1), groups * source_bytes + blocks * panel_bytes)
                if cost < least:
                    best, least = (blocks, groups), cost
        return best

    def _features(self, low: Index, high: Index, first: Index, last: Index) -> tirx.Stmt:
        statements = []
        start = 0
        for begin, count, width in self.classes:
            from_tile = tirx.max(tir.number(low), tir.number(begin))
            to_tile = tirx.min(tir.number(high), tir.number(begin + count))
            if isinstance(low, int) and isinstance(high, int):
                from_tile, to_tile = max(low, begin), min(high, begin + count)

            def body(tile: Index, begin: int = begin, width: int = width, start: int = start) -> tirx.Stmt:
                feature = start + (tile - begin) * width
                return tir.loop(last - first, lambda p: self._place(p, feature, width), "place", start=first)

            statements.append(tir.loop(to_tile - from_tile, body, "features", start=from_tile))
            start += count * width
        return tir.sequence(statements)

    def _place(self, place: Index, feature: Index, width: int) -> tirx.Stmt:
        tiles = self.tiles
        column, above = place % tiles.columns.count, place // tiles.columns.count
        row, image = above % tiles.rows.count, above // tiles.rows.count

        return tir.pick(
            tiles.rows,
            row,
            lambda i, height: tir.pick(
                tiles.columns, column, lambda j, breadth: self._tile(image, i, j, feature, (height, breadth, width))
            ),
        )

    def _tile(self, image: Index, i: Index, j: Index, feature: Index, size: tuple[int, int, int]) -> tirx.Stmt:
        source, panels, pixels = self.pixels.source, self.pixels.panels, self.pixels
        height, breadth, width = size
        spots = [(a, b) for a in range(height) for b in range(breadth)]
        tile = RegisterTile(len(spots), width, self.info.lanes)
        origin = source.base + image * source.image + i * source.row + j * source.column
        pitch = width if panels.packed else pixels.features
        panel = panels.base + (feature * pixels.steps if panels.packed else feature)

        def step(at: Index, row: Index) -> tirx.Stmt:
            def scalar(m: int) -> tirx.Expr:
                a, b = spots[m]
                return tir.load(source.buffer, at + (a * source.row + b * source.column))

            return tile.multiply(scalar, lambda o, n: tir.load(panels.buffer, row + o, n))

        def chain(tap: Index, first: Index, last: Index) -> tirx.Stmt:
            def run(at: Index, row: Index) -> tirx.Stmt:
                return tir.loop(last - first, lambda q: step(at + q, row + q * pitch), "step", start=first)

            return tir.bind(
                origin + tap * source.tap,
                lambda at: tir.bind(panel + tap * (pixels.run * pitch), lambda row: run(at, row), "row"),
                "at",
            )

        def coordinates(m: int, offset: Index) -> tuple[Index, ...]:
            a, b = spots[m]
            return pixels.coordinates(image, i + a, j + b, feature + offset)

        code, total = self._sum(tile, chain)
        return tir.sequence([*code, total.finish(self.problem, coordinates)])

    def _sum(
        self, tile: RegisterTile, chain: Callable[[Index, Index, Index], tirx.Stmt]
    ) -> tuple[list[tirx.Stmt], RegisterTile]:
        pixels = self.pixels
        if pixels.steps <= 2 * CHAIN_STEPS:
            taps = [tir.loop(pixels.taps, lambda t: chain(t, 0, pixels.run), "tap")] if pixels.steps else []
            return [tile.declare(), tile.clear(), *taps], tile
        total = RegisterTile(tile.rows, tile.width, self.info.lanes)
        links = -(-pixels.run // CHAIN_STEPS)

        def link(tap: Index, index: Index) -> tirx.Stmt:
            flush = total.add(tile.sums.get)
            return tir.sequence([tile.clear(), chain(tap, *tir.share(index, links, pixels.run)), flush])

        taps = tir.loop(pixels.taps, lambda t: tir.loop(links, lambda index: link(t, index), "link"), "tap")
        return [tile.declare(), total.declare(), total.clear(), taps], total
