"""Contractions whose reduction runs over pixels (weight gradient, AᵀB): in blocks, or gathered into panels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.schedules.panels import (
    Block,
    Grid,
    RegisterTile,
    by_portions,
    each_block,
    partial_sums,
    pick_features,
    pixel_blocks,
    sum_block,
)
from autotm.kernels.schedules.pixels import Source
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.target import TargetInfo, cut, register_tiles
from autotm.kernels.tir import Code, Index

# Contractions whose reduction runs over pixels: the weight gradient and the product of a transposed matrix.
#
#     result[t, q, k] = sum over pixels p of source[p; t, q] * right[p, k]
#
# Pixels are taken in blocks that stay in the second-level cache; the sums of a block go from registers to memory,
# which also keeps rounding errors small.

_WIDE = 4
"""Features for each position in a run from which the tiles of one vector of features are taken together."""


@dataclass(frozen=True)
class Weights:
    """One contraction over pixels."""

    batch: int
    rows: int
    columns: int
    features: int
    taps: int
    run: int
    source: Source
    right: Source
    coordinates: Callable[[Index, Index, Index], tuple[Index, ...]]
    """Tap, position in its run, and feature to indices of the result."""

    @property
    def lines(self) -> int:
        """Rows of pixels in all images."""
        return self.batch * self.rows

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.taps * self.run * self.features


def contract_weights(weights: Weights, problem: Problem, info: TargetInfo, threads: int, *, lean: bool) -> Code:
    """Emit code in which the threads share the result's tiles when there are enough of them, else the pixels.

    Lean code holds the sums of a portion of the result at a time: it reads the pixels once for each.
    """
    emitter = _BlockedEmitter(weights, problem, info, threads)
    if lean and emitter.blocks > 1 and not problem.plain:
        return emitter.by_portions()
    is_uneven = -(-emitter.count // threads) * threads > 1.25 * emitter.count
    return emitter.by_pixels() if is_uneven and weights.lines >= 4 * threads else emitter.by_tiles()


class _BlockedEmitter:
    def __init__(self, weights: Weights, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.weights, self.problem, self.info, self.threads = weights, problem, info, threads
        # Much wider than high: one tile of features at a time stays in the cache, with all of the other operand.
        self.features_outside = weights.taps == 1 and weights.features >= _WIDE * weights.run
        features = min(weights.features, info.registers * info.lanes) if self.features_outside else weights.features
        line_bytes = 4 * weights.columns * (min(weights.source.column, weights.run) + features)
        self.blocks = pixel_blocks(weights.lines, weights.columns, line_bytes, info)
        pixels = -(-weights.lines // self.blocks) * weights.columns
        self.tiles = register_tiles(1, weights.run, weights.features, pixels, info)
        self.count = weights.taps * self.tiles.columns.count * self.tiles.vectors.count

    def by_portions(self) -> Code:
        tile_size = self.tiles.columns.size * self.tiles.vectors.size * self.info.lanes

        def body(block: Block, first: Index, last: Index, _task: Index) -> tirx.Stmt:
            return self._block(block, first, last, tile_size)

        tasks, blocks = min(self.threads, self.count), (self.blocks, self.weights.lines)
        code, partial = by_portions(tasks, self.count, tile_size, blocks, self.info, body)
        return Code(code, (partial,))

    def by_tiles(self) -> Code:
        partial, workspaces = partial_sums(self.problem, self.weights.size, self.blocks)
        tasks = min(self.threads, self.count)

        def task(index: Index) -> tirx.Stmt:
            tiles = tir.share(index, tasks, self.count)
            return each_block(self.blocks, self.weights.lines, partial, lambda block: self._block(block, *tiles))

        return Code(tir.parallel(tasks, task, "task"), workspaces)

    def by_pixels(self) -> Code:
        lines, size = self.weights.lines, self.weights.size
        shares = min(self.threads, lines)
        blocks = -(-self.blocks // shares)
        partial = tir.workspace(size * shares, "partial_sums")

        def task(index: Index) -> tirx.Stmt:
            def block(number: Index) -> tirx.Stmt:
                span = tir.share(index * blocks + number, blocks * shares, lines)
                return self._block(Block(*span, partial, index * size, number == 0, is_last=False), 0, self.count)

            return tir.loop(blocks, block, "block")

        body = tir.parallel(shares, task, "task")
        return Code(tir.sequence([body, self._gather(partial, shares)]), (partial,))

    def _gather(self, partial: tirx.Buffer, shares: int) -> tirx.Stmt:
        weights = self.weights

        def row(index: Index) -> tirx.Stmt:
            def element(feature: Index) -> tirx.Stmt:
                def total() -> tirx.Expr:
                    at = index * weights.features + feature
                    others = (tir.load(partial, at + share * weights.size) for share in range(1, shares))
                    return sum(others, tir.load(partial, at))

                place = weights.coordinates(index // weights.run, index % weights.run, feature)
                return self.problem.finish(place, total)

            return tir.lanewise(weights.features, self.info.lanes, element)

        return tir.parallel(weights.taps * weights.run, row, "row")

    def _block(self, block: Block, first: Index, last: Index, apart: int = 0) -> tirx.Stmt:
        """Emit tiles [first, last) of the result; sums lie `apart` elements from each other, or at their place."""
        vectors, positions = self.tiles.vectors, self.tiles.columns

        def tile(index: Index) -> tirx.Stmt:
            vector, above = index % vectors.count, index // vectors.count
            position, tap = above % positions.count, above // positions.count
            if self.features_outside:
                position, vector, tap = index % positions.count, index // positions.count, 0
            waiting = (index - first) * apart if apart else None

            def rows(q: Index, height: int) -> tirx.Stmt:
                def features(k: Index, width: int) -> tirx.Stmt:
                    return tir.bind_all(
                        (tap, q, k),
                        "tap position feature",
                        lambda *where: self._tile(block, where, (height, width), waiting),
                    )

                return pick_features(vectors, vector, self.weights.features, self.info.lanes, features)

            return tir.pick(positions, position, rows)

        return tir.loop(last - first, tile, "tile", start=first)

    def _tile(
        self, block: Block, where: tuple[Index, Index, Index], size: tuple[int, int], waiting: Index | None
    ) -> tirx.Stmt:
        weights, (tap, q, k) = self.weights, where
        tile = RegisterTile(*size, self.info.lanes)
        source, right = weights.source, weights.right

        def pixels(a: Index, b: Index) -> tirx.Stmt:
            def pixel(j: Index) -> tirx.Stmt:
                left, other = a + j * source.column, b + j * right.column
                return tile.multiply(
                    lambda m: tir.load(source.buffer, left + m), lambda o, n: tir.load(right.buffer, other + o, n)
                )

            return tir.loop(weights.columns, pixel, "pixel")

        def line(index: Index) -> tirx.Stmt:
            image, row = index // weights.rows, index % weights.rows
            left, other = (s.base + image * s.image + row * s.row for s in (source, right))
            return tir.bind(
                left + tap * source.tap + q, lambda a: tir.bind(other + k, lambda b: pixels(a, b), "other"), "left"
            )

        return sum_block(
            tile,
            block,
            self.problem,
            tir.loop(block.last - block.first, line, "line", start=block.first),
            lambda m, o: (tap * weights.run + q + m) * weights.features + k + o,
            lambda m, o: weights.coordinates(tap, q + m, k + o),
            None if waiting is None else lambda m, o: waiting + m * size[1] + o,
        )


# The weight gradient of many channels: the pixels that one tap meets are first gathered into a dense panel.
#
# A panel holds a vector of channels of each pixel of a block, and is small enough for the first-level cache, where
# channels in place would lie a whole pixel apart and evict each other. It serves all tiles of features, so gathering
# it costs little; zeros around the image are gathered too, so that no padded copy of the input is needed.

_LEAST_TILES = 3
"""Feature tiles that must share a panel before gathering it pays."""


def gathering_pays(problem: Problem, info: TargetInfo, threads: int) -> bool:
    """Return whether enough features share a panel and enough panels keep every thread busy."""
    rows, columns, channels, features = problem.shape
    tiles = -(-features // (_vectors(info) * info.lanes))
    panels = rows * columns * -(-channels // info.lanes)
    return tiles >= _LEAST_TILES and panels >= threads


def _vectors(info: TargetInfo) -> int:
    return (info.registers - 1) // (info.lanes // 2 + 1)


def contract_windows(problem: Problem, info: TargetInfo, threads: int, *, lean: bool) -> Code:
    """Emit code in which the threads share the panels.

    Lean code holds the sums of a portion of the result at a time: it reads the pixels once for each.
    """
    emitter = _GatheredEmitter(problem, info, threads)
    return emitter.by_portions() if lean and emitter.blocks > 1 and not problem.plain else emitter.code()


class _GatheredEmitter:
    def __init__(self, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.problem, self.info = problem, info
        self.window = problem.shape[:2]
        self.x, self.dy = x, dy = Grid.of(problem.left), Grid.of(problem.right)
        self.lines = dy.batch * dy.rows
        line_bytes = 4 * dy.columns * (x.channels * problem.stride[1] + dy.channels)
        self.blocks = pixel_blocks(self.lines, dy.columns, line_bytes, info)
        self.panels = cut(x.channels, info.lanes)
        self.features = cut(-(-dy.channels // info.lanes), _vectors(info))
        self.taps = math.prod(self.window)
        self.tasks = min(threads, self.taps * self.panels.count)
        self.panel_size = -(-self.lines // self.blocks) * dy.columns * self.panels.size
        self.panel = tir.workspace(self.tasks * self.panel_size, "panels")

    def code(self) -> Code:
        partial, workspaces = partial_sums(self.problem, math.prod(self.problem.shape), self.blocks)
        units = self.taps * self.panels.count

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, units)
            base = index * self.panel_size

            def block(span: Block) -> tirx.Stmt:
                return tir.loop(last - first, lambda unit: self._unit(span, unit, base), "panel", start=first)

            return each_block(self.blocks, self.lines, partial, block)

        body = tir.parallel(self.tasks, task, "task")
        return Code(body, (self.panel, *workspaces))

    def by_portions(self) -> Code:
        unit_size = self.panels.size * self.dy.channels

        def body(block: Block, first: Index, last: Index, task: Index) -> tirx.Stmt:
            def unit(number: Index) -> tirx.Stmt:
                own = dataclasses.replace(block, base=block.base + (number - first) * unit_size)
                return self._unit(own, number, task * self.panel_size, own=True)

            return tir.loop(last - first, unit, "panel", start=first)

        units, blocks = self.taps * self.panels.count, (self.blocks, self.lines)
        code, partial = by_portions(self.tasks, units, unit_size, blocks, self.info, body)
        return Code(code, (self.panel, partial))

    def _unit(self, block: Block, unit: Index, base: Index, *, own: bool = False) -> tirx.Stmt:
        """Emit a panel; its sums wait at their place in the result, or one after the other in memory of their `own`."""
        tap, number = unit // self.panels.count, unit % self.panels.count

        def body(channel: Index, width: int) -> tirx.Stmt:
            panel = tap, channel, width, base
            return tir.sequence([self._gather(block, *panel), self._tiles(block, *panel, own=own)])

        return tir.pick(self.panels, number, body)

    def _gather(self, block: Block, tap: Index, channel: Index, width: int, base: Index) -> tirx.Stmt:
        x, dy, origins = self.x, self.dy, self.problem.padding[:2]
        r, s = tap // self.window[1], tap % self.window[1]
        down, across = self.problem.stride
        axes = zip((dy.rows, dy.columns), self.problem.stride, self.window, (x.rows, x.columns), strict=True)
        reach = [(count - 1) * step + window <= extent for count, step, window, extent in axes]
        never_outside = not any(origins) and all(reach)

        def copy(to: Index, origin: Index | None) -> tirx.Stmt:
            moves = []
            for offset, lanes in tir.segments(width, self.info.lanes):
                value = tir.zeros(lanes) if origin is None else tir.load(x.buffer, origin + offset, lanes)
                moves.append(tir.store(self.panel, to + offset, value, lanes))
            return tir.sequence(moves)

        def line(index: Index) -> tirx.Stmt:
            image, row = index // dy.rows, (index % dy.rows) * down + r - origins[0]
            to = base + (index - block.first) * (dy.columns * width)
            start = tir.number(s - origins[1])
            origin = image * x.image + row * x.row + start * x.channels + channel

            def fill(first: Index, last: Index) -> tirx.Stmt:
                return tir.loop(last - first, lambda j: copy(to + j * width, None), "pixel", start=first)

            def inside(low: Index, high: Index) -> tirx.Stmt:
                def move(j: Index) -> tirx.Stmt:
                    return copy(to + j * width, origin + j * (across * x.channels))

                middle = tir.loop(high - low, move, "pixel", start=low)
                return tir.sequence([fill(0, low), middle, fill(high, dy.columns)])

            if never_outside:
                return inside(0, dy.columns)
            low = tirx.min(tirx.max(-(start // across), 0), dy.columns)
            high = tirx.max(tirx.min((x.columns - 1 - start) // across + 1, dy.columns), low)
            known = tirx.all(row >= 0, row < x.rows)
            return tir.choose(
                known,
                tir.bind(low, lambda a: tir.bind(high, lambda b: inside(a, b), "high"), "low"),
                fill(0, dy.columns),
            )

        return tir.loop(block.last - block.first, line, "line", start=block.first)

    def _tiles(self, block: Block, tap: Index, channel: Index, width: int, base: Index, *, own: bool) -> tirx.Stmt:
        halves = cut(width, max(1, self.info.lanes // 2))

        def tile(index: Index) -> tirx.Stmt:
            vector, half = index % self.features.count, index // self.features.count

            def rows(m: Index, height: int) -> tirx.Stmt:
                def features(k: Index, breadth: int) -> tirx.Stmt:
                    return tir.bind_all(
                        (tap, channel, m, k),
                        "tap channel row feature",
                        lambda *where: self._tile(block, where, (height, breadth), width, base, own=own),
                    )

                return pick_features(self.features, vector, self.dy.channels, self.info.lanes, features)

            return tir.pick(halves, half, rows)

        return tir.loop(halves.count * self.features.count, tile, "tile")

    def _tile(
        self, block: Block, where: tuple[Index, ...], size: tuple[int, int], width: int, base: Index, *, own: bool
    ) -> tirx.Stmt:
        (tap, channel, row, k), dy = where, self.dy
        tile = RegisterTile(*size, self.info.lanes)

        def pixels(left: Index, right: Index) -> tirx.Stmt:
            def pixel(p: Index) -> tirx.Stmt:
                return tile.multiply(
                    lambda m: tir.load(self.panel, left + p * width + m),
                    lambda o, n: tir.load(dy.buffer, right + p * dy.channels + o, n),
                )

            return tir.loop((block.last - block.first) * dy.columns, pixel, "pixel")

        def place(m: int, o: int) -> Index:
            return (tap * self.x.channels + channel + row + m) * dy.channels + k + o

        def coordinates(m: int, o: Index) -> tuple[Index, ...]:
            return tap // self.window[1], tap % self.window[1], channel + row + m, k + o

        reduce = tir.bind(
            base + row, lambda a: tir.bind(block.first * dy.row + k, lambda b: pixels(a, b), "right"), "left"
        )

        def waiting(m: int, o: int) -> Index:
            return (row + m) * dy.channels + k + o

        return sum_block(tile, block, self.problem, reduce, place, coordinates, waiting if own else None)
