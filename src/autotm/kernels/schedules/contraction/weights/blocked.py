"""Contractions whose reduction runs over pixels: the weight gradient and the product of a transposed matrix.

    result[t, q, k] = sum over pixels p of source[p; t, q] * right[p, k]

Pixels are taken in blocks that stay in the second-level cache; the sums of a block go from registers to memory,
which also keeps rounding errors small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Code, Index, TargetInfo, register_tiles, tir
from autotm.kernels.schedules.contraction.forms import Source
from autotm.kernels.schedules.contraction.parts import (
    Block,
    Problem,
    RegisterTile,
    each_block,
    each_portion,
    partial_sums,
    pick_features,
    pixel_blocks,
    portion_of,
    sum_block,
)

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


def contract_weights(weights: Weights, problem: Problem, info: TargetInfo, threads: int, *, lean: bool = False) -> Code:
    """Threads share the result's tiles when there are enough of them, else the pixels.

    Lean code holds the sums of a portion of the result at a time: it reads the pixels once for each.
    """
    emitter = _Emitter(weights, problem, info, threads)
    if lean and emitter.waits:
        return emitter.by_portions()
    return emitter.by_pixels() if emitter.few_tiles else emitter.by_tiles()


class _Emitter:
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

    @property
    def few_tiles(self) -> bool:
        rounds = -(-self.count // self.threads)
        return rounds * self.threads > 1.25 * self.count and self.weights.lines >= 4 * self.threads

    @property
    def waits(self) -> bool:
        """Whether sums wait between blocks in memory that is not the result's."""
        return self.blocks > 1 and not self.problem.plain

    def by_portions(self) -> Code:
        weights, tasks = self.weights, min(self.threads, self.count)
        tile_size = self.tiles.columns.size * self.tiles.vectors.size * self.info.lanes
        most = -(-self.count // tasks)
        size = min(most, portion_of(4 * tile_size, self.info))
        partial = tir.workspace(tasks * size * tile_size, "partial_sums")

        def task(index: Index) -> tirx.Stmt:
            def portion(first: Index, last: Index) -> tirx.Stmt:
                def block(span: Block) -> tirx.Stmt:
                    own = dataclasses.replace(span, base=index * (size * tile_size))
                    return self._block(own, first, last, tile_size)

                return each_block(self.blocks, weights.lines, partial, block)

            return each_portion(tir.share(index, tasks, self.count), most, size, portion)

        return Code(tir.loop(tasks, task, "task", tirx.ForKind.PARALLEL), (partial,))

    def by_tiles(self) -> Code:
        partial, workspaces = partial_sums(self.problem, self.weights.size, self.blocks)
        tasks = min(self.threads, self.count)

        def task(index: Index) -> tirx.Stmt:
            tiles = tir.share(index, tasks, self.count)
            return each_block(self.blocks, self.weights.lines, partial, lambda block: self._block(block, *tiles))

        return Code(tir.loop(tasks, task, "task", tirx.ForKind.PARALLEL), workspaces)

    def by_pixels(self) -> Code:
        lines, size = self.weights.lines, self.weights.size
        shares = min(self.threads, lines)
        blocks = -(-self.blocks // shares)
        partial = tir.workspace(size * shares, "partial_sums")

        def task(index: Index) -> tirx.Stmt:
            def block(number: Index) -> tirx.Stmt:
                span = tir.share(index * blocks + number, blocks * shares, lines)
                is_last = False
                return self._block(Block(*span, partial, index * size, number == 0, is_last), 0, self.count)

            return tir.loop(blocks, block, "block")

        body = tir.loop(shares, task, "task", tirx.ForKind.PARALLEL)
        return Code(tir.sequence([body, self._gather(partial, shares)]), (partial,))

    def _gather(self, partial: tirx.Buffer, shares: int) -> tirx.Stmt:
        weights = self.weights

        def row(index: Index) -> tirx.Stmt:
            def element(feature: Index) -> tirx.Stmt:
                def total() -> tirx.Expr:
                    at = index * weights.features + feature
                    value = tir.load(partial, at)
                    for share in range(1, shares):
                        value = value + tir.load(partial, at + share * weights.size)
                    return value

                place = weights.coordinates(index // weights.run, index % weights.run, feature)
                return self.problem.finish(place, total)

            return tir.lanewise(weights.features, self.info.lanes, element)

        return tir.loop(weights.taps * weights.run, row, "row", tirx.ForKind.PARALLEL)

    def _block(self, block: Block, first: Index, last: Index, apart: int = 0) -> tirx.Stmt:
        """Tiles [first, last) of the result; their sums wait `apart` elements from each other, or at their place."""
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
