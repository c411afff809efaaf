"""Contractions whose reduction runs over pixels: the weight gradient and the product of a transposed matrix.

    result[t, q, k] = sum over pixels p of source[p; t, q] * right[p, k]

Pixels are taken in blocks that stay in the second-level cache; partial sums of a block go from registers to memory,
which also keeps rounding errors small.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.contraction_pixels import Source
from autotm.kernels.contraction_problem import Problem
from autotm.kernels.contraction_tiles import CHAIN_STEPS, register_tiles
from autotm.kernels.target import TargetInfo
from autotm.kernels.tir import Index


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


@dataclass(frozen=True)
class Code:
    """Generated statements and the root-level buffers they use."""

    body: tirx.Stmt
    workspaces: tuple[tirx.Buffer, ...]


def contract_weights(weights: Weights, problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Threads share the result's tiles when there are enough of them, else the pixels."""
    emitter = _Emitter(weights, problem, info, threads)
    return emitter.by_pixels() if emitter.few_tiles else emitter.by_tiles()


class _Emitter:
    def __init__(self, weights: Weights, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.weights, self.problem, self.info, self.threads = weights, problem, info, threads
        self.lines = weights.batch * weights.rows
        line_bytes = 4 * weights.columns * (min(weights.source.column, weights.run) + weights.features)
        cache_blocks = -(-2 * self.lines * line_bytes // info.l2_bytes)
        chain_blocks = -(-self.lines * weights.columns // CHAIN_STEPS)
        self.blocks = min(self.lines, max(cache_blocks, chain_blocks))
        pixels = -(-self.lines // self.blocks) * weights.columns
        self.tiles = register_tiles(1, weights.run, weights.features, pixels, info)
        self.count = weights.taps * self.tiles.columns.count * self.tiles.vectors.count
        self.size = weights.taps * weights.run * weights.features

    @property
    def few_tiles(self) -> bool:
        rounds = -(-self.count // self.threads)
        return rounds * self.threads > 1.25 * self.count and self.lines >= 4 * self.threads

    def by_tiles(self) -> Code:
        blocks = self.blocks
        partial = None
        if blocks > 1:
            plain = self.problem.plain
            partial = self.problem.product if plain else tir.workspace(self.size, "partial_sums")
        tasks = min(self.threads, self.count)

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, tasks, self.count)
            return tir.loop(
                blocks,
                lambda block: self._block(
                    tir.share(block, blocks, self.lines), (first, last), partial, 0, block == 0, block == blocks - 1
                ),
                "block",
            )

        body = tir.loop(tasks, task, "task", tirx.ForKind.PARALLEL)
        return Code(body, (partial,) if partial is not None and not self.problem.plain else ())

    def by_pixels(self) -> Code:
        shares = min(self.threads, self.lines)
        blocks = -(-self.blocks // shares)
        partial = tir.workspace(self.size * shares, "partial_sums")

        def task(index: Index) -> tirx.Stmt:
            def block(number: Index) -> tirx.Stmt:
                lines = tir.share(index * blocks + number, blocks * shares, self.lines)
                return self._block(lines, (0, self.count), partial, index * self.size, number == 0, False)

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
                        value = value + tir.load(partial, at + share * self.size)
                    return value

                place = weights.coordinates(index // weights.run, index % weights.run, feature)
                return self.problem.finish(place, total)

            return tir.lanewise(weights.features, self.info.lanes, element)

        return tir.loop(weights.taps * weights.run, row, "row", tirx.ForKind.PARALLEL)

    def _block(
        self,
        lines: tuple[Index, Index],
        tiles: tuple[Index, Index],
        partial: tirx.Buffer | None,
        base: Index,
        is_first: tirx.Expr | bool,
        is_last: tirx.Expr | bool,
    ) -> tirx.Stmt:
        def tile(index: Index) -> tirx.Stmt:
            vectors, positions = self.tiles.vectors, self.tiles.columns
            vector, above = index % vectors.count, index // vectors.count
            position, tap = above % positions.count, above // positions.count
            return tir.pick(
                positions,
                position,
                lambda q, height: self._pick_width(
                    vector,
                    lambda k, width: self._tile(lines, (tap, q, k), (height, width), partial, base, is_first, is_last),
                ),
            )

        first, last = tiles
        return tir.loop(last - first, tile, "tile", start=first)

    def _pick_width(self, vector: Index, body: Callable[[Index, int], tirx.Stmt]) -> tirx.Stmt:
        lanes, cut = self.info.lanes, self.tiles.vectors
        tail = self.weights.features % lanes
        if not tail:
            return tir.pick(cut, vector, lambda k, size: body(k * lanes, size * lanes))
        size = cut.size if cut.longer == cut.count else cut.size - 1
        end = body(self.weights.features - (size - 1) * lanes - tail, (size - 1) * lanes + tail)
        if cut.count == 1:
            return end
        return tir.choose(
            vector == cut.count - 1, end, tir.pick(cut, vector, lambda k, size: body(k * lanes, size * lanes))
        )

    def _tile(
        self,
        lines: tuple[Index, Index],
        where: tuple[Index, Index, Index],
        size: tuple[int, int],
        partial: tirx.Buffer | None,
        base: Index,
        is_first: tirx.Expr | bool,
        is_last: tirx.Expr | bool,
    ) -> tirx.Stmt:
        weights, (tap, q, k), (height, width) = self.weights, where, size
        vectors = tir.segments(width, self.info.lanes)
        sums = tir.Registers(height, width)
        spots = [(m, offset, lanes) for m in range(height) for offset, lanes in vectors]

        def memory(m: int, offset: int) -> Index:
            return base + ((tap * weights.run + q + m) * weights.features + k + offset)

        def step(left: Index, right: Index) -> tirx.Stmt:
            updates = []
            for m, offset, lanes in spots:
                scalar = tir.load(weights.source.buffer, left + m)
                vector = tir.load(weights.right.buffer, right + offset, lanes)
                total = sums.get(m, offset, lanes) + tir.splat(scalar, lanes) * vector
                updates.append(sums.set(m, offset, total, lanes))
            return tir.sequence(updates)

        def line(index: Index) -> tirx.Stmt:
            image, row = index // weights.rows, index % weights.rows
            left, right = (s.base + image * s.image + row * s.row for s in (weights.source, weights.right))
            left = left + tap * weights.source.tap + q
            return tir.bind(
                left,
                lambda a: tir.bind(
                    right + k,
                    lambda b: tir.loop(
                        weights.columns,
                        lambda j: step(a + j * weights.source.column, b + j * weights.right.column),
                        "pixel",
                    ),
                    "right",
                ),
                "left",
            )

        clear = tir.sequence([sums.set(m, o, tir.zeros(lanes), lanes) for m, o, lanes in spots])
        gather = save = tir.sequence([])
        if partial is not None:
            gather = tir.sequence(
                [
                    sums.set(m, o, sums.get(m, o, lanes) + tir.load(partial, memory(m, o), lanes), lanes)
                    for m, o, lanes in spots
                ]
            )
            save = tir.sequence(
                [tir.store(partial, memory(m, o), sums.get(m, o, lanes), lanes) for m, o, lanes in spots]
            )
        done = tir.sequence([self._finish(functools.partial(sums.get, m), o, (tap, q + m, k + o), lanes) for m, o, lanes in spots])
        return tir.sequence(
            [
                sums.declare(),
                clear,
                tir.loop(lines[1] - lines[0], line, "line", start=lines[0]),
                tir.choose(is_first, tir.sequence([]), gather),
                tir.choose(is_last, done, save),
            ]
        )

    def _finish(
        self, sums: Callable[[Index], tirx.Expr], at: int, where: tuple[Index, Index, Index], lanes: int
    ) -> tirx.Stmt:
        tap, q, feature = where

        def lane(number: Index) -> tirx.Stmt:
            coordinates = self.weights.coordinates(tap, q, feature + number)
            return self.problem.finish(coordinates, lambda: sums(at + number))

        return tir.loop(lanes, lane, "lane", tirx.ForKind.VECTORIZED)
