"""3x3 convolutions and data gradients of stride one by Winograd's F(2x2, 3x3): 16 products instead of 36.

Four neighbouring results are A'[(G g G') o (B' d B)]A of a 4x4 square d of the source and a window g of weights, o the
product of elements (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308). Summed over
channels, each of the 16 elements is a matrix product of squares by features. Threads take blocks of squares: they
transform a block's source, multiply it by the transformed weights of one tile of features after the other, and
transform the products back; transformed sources and products of a block stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.contraction_panels import Operand, RowMajor, Taps, Turned
from autotm.kernels.contraction_pixels import Pixels, Source, feature_tiles
from autotm.kernels.contraction_prepare import Grid
from autotm.kernels.contraction_problem import Problem
from autotm.kernels.contraction_tile import RegisterTile
from autotm.kernels.contraction_tiles import CHAIN_STEPS, register_tiles
from autotm.kernels.generated import Code
from autotm.kernels.target import TargetInfo
from autotm.kernels.tir import Index

_WINDOW, _SIDE, _RESULTS = 3, 4, 2
"""Sides of the weights, of a square of the source, and of its results."""
_ELEMENTS = _SIDE * _SIDE
_LEAST_CHANNELS = 32
"""With fewer, transforming takes as long as the products that it saves."""


def winograd_fits(problem: Problem) -> bool:
    """Whether the contraction can be computed so, with channels enough to gain by it."""
    if problem.kind not in {"conv2d", "conv2d_data_gradient"} or problem.groups > 1 or problem.stride != (1, 1):
        return False
    rows, columns, *channels = tir.extents(problem.right)
    return rows == columns == _WINDOW and min(channels) >= _LEAST_CHANNELS and max(channels) <= CHAIN_STEPS


def winograd_forward(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Convolution."""
    _, _, channels, features = tir.extents(problem.right)
    top, left, _, _ = problem.padding
    operand = RowMajor(problem.right, _WINDOW * _WINDOW * channels, features)
    return _Winograd(problem, info, threads, (top, left), channels, operand).code()


def winograd_data_gradient(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Gradient by the input: a convolution of the result's gradient with turned weights."""
    shape = tir.extents(problem.right)
    top, left, _, _ = problem.padding
    taps = Taps(0, 1, _WINDOW)
    operand = Turned(problem.right, shape, taps, taps)
    origin = _WINDOW - 1 - top, _WINDOW - 1 - left
    return _Winograd(problem, info, threads, origin, shape[3], operand).code()


@dataclass(frozen=True)
class _Own:
    """A thread's part of a workspace."""

    buffer: tirx.Buffer
    base: Index

    def load(self, at: Index, lanes: int = 1) -> tirx.Expr:
        return tir.load(self.buffer, self.base + at, lanes)

    def store(self, at: Index, value: tirx.Expr, lanes: int) -> tirx.Stmt:
        return tir.store(self.buffer, self.base + at, value, lanes)


class _Winograd:
    def __init__(
        self,
        problem: Problem,
        info: TargetInfo,
        threads: int,
        origin: tuple[int, int],
        channels: int,
        operand: RowMajor | Turned,
    ) -> None:
        self.problem, self.info, self.threads = problem, info, threads
        self.channels, self.operand = channels, operand
        self.batch, self.rows, self.columns, self.features = problem.shape
        self.down, self.across = -(-self.rows // _RESULTS), -(-self.columns // _RESULTS)
        self.squares = self.batch * self.down * self.across
        self.source = Grid(problem.left, *tir.extents(problem.left))
        self.origin = origin
        tiles = register_tiles(1, self.squares, self.features, channels, info)
        self.abreast = tiles.columns.size
        self.classes = feature_tiles(self._product(), info)
        self.block = self._block_squares()
        self.blocks = -(-self.squares // self.block)
        self.tasks = min(threads, self.blocks)

    def _product(self) -> Pixels:
        """One of the 16 matrix products."""
        source = Source(self.problem.left, 0, 0, 0, self.channels, 0)
        operand: Operand = RowMajor(self.problem.right, self.channels, self.features)
        return Pixels(
            1, 1, self.squares, self.features, (1, 1), self.channels, source, operand, lambda n, i, j, k: (n, i, j, k)
        )

    def _block_squares(self) -> int:
        """Squares of a block: as many as half the second-level cache holds, whole register tiles, equal shares."""
        tile = max(width for _, _, width in self.classes)
        fitting = self.info.l2_bytes // 2 // (4 * _ELEMENTS * (self.channels + tile))
        most = max(4 * self.abreast, fitting)
        blocks = -(-self.squares // most)
        if blocks > 1:
            blocks = -(-blocks // self.threads) * self.threads
        share = -(-self.squares // max(blocks, min(self.threads, self.squares)))
        return -(-share // self.abreast) * self.abreast

    def code(self) -> Code:
        """Everything: transform the weights, then the blocks."""
        statements: list[tirx.Stmt] = []
        weights = tir.workspace(_ELEMENTS * self.channels * self.features, "weights")
        spaces = [weights]
        if isinstance(self.operand, Turned):
            panels = tir.workspace(self.operand.steps * self.features, "turned")
            spaces.append(panels)
            statements += [self._fill(panels, *each) for each in self._classes()]
            statements += [self._transform_weights(weights, panels, *each) for each in self._classes()]
        else:
            statements += [self._transform_weights(weights, None, *each) for each in self._classes()]
        widest = max(width for _, _, width in self.classes)
        sources = tir.workspace(self.tasks * _ELEMENTS * self.block * self.channels, "sources")
        products = tir.workspace(self.tasks * _ELEMENTS * self.block * widest, "products")

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, self.blocks)
            own = (
                _Own(sources, index * (_ELEMENTS * self.block * self.channels)),
                _Own(products, index * (_ELEMENTS * self.block * widest)),
            )
            return tir.loop(last - first, lambda block: self._block(block, weights, *own), "block", start=first)

        statements.append(tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL))
        return Code(tir.sequence(statements), (*spaces, sources, products))

    def _classes(self) -> list[tuple[int, int, int]]:
        """(first feature, number of tiles, width) of each class of feature tiles."""
        found, start = [], 0
        for _, count, width in self.classes:
            found.append((start, count, width))
            start += count * width
        return found

    # --- weights ---------------------------------------------------------------------------------------------------
    def _fill(self, panels: tirx.Buffer, start: int, count: int, width: int) -> tirx.Stmt:
        operand = self.operand

        def part(index: Index) -> tirx.Stmt:
            feature = start + index // operand.parts * width
            return operand.fill(index % operand.parts, feature, width, panels, feature * operand.steps, self.info.lanes)

        return tir.loop(count * operand.parts, part, "part", tirx.ForKind.PARALLEL)

    def _transform_weights(
        self, weights: tirx.Buffer, panels: tirx.Buffer | None, start: int, count: int, width: int
    ) -> tirx.Stmt:
        """G g G' of every channel, for the tiles of one class."""
        source, pitch = (panels, width) if panels is not None else (self.operand.buffer, self.features)

        def unit(index: Index) -> tirx.Stmt:
            feature, channel = start + index // self.channels * width, index % self.channels
            begin = feature * self.operand.steps if panels is not None else feature
            target = feature * (_ELEMENTS * self.channels) + channel * width

            def vector(offset: int, n: int) -> tirx.Stmt:
                def weight(tap: int) -> tirx.Expr:
                    return tir.load(source, begin + ((tap * self.channels + channel) * pitch + offset), n)

                def put(element: int, value: tirx.Expr) -> tirx.Stmt:
                    return tir.store(weights, target + (element * self.channels * width + offset), value, n)

                return _both_ways((_WINDOW, _SIDE), lambda v: _spread(v, n), weight, put, n)

            return tir.sequence([vector(offset, n) for offset, n in tir.segments(width, self.info.lanes)])

        return tir.loop(count * self.channels, unit, "channel", tirx.ForKind.PARALLEL)

    # --- blocks ----------------------------------------------------------------------------------------------------
    def _block(self, block: Index, weights: tirx.Buffer, sources: _Own, products: _Own) -> tirx.Stmt:
        first = block * self.block

        def body(count: Index) -> tirx.Stmt:
            transformed = tir.loop(count, lambda p: self._transform_source(first + p, p, sources), "square")
            return tir.sequence(
                [transformed, *(self._features(first, count, weights, sources, products, *c) for c in self._classes())]
            )

        if self.squares % self.block == 0:
            return body(self.block)
        return tir.bind(tirx.min(tir.number(self.block), self.squares - first), body, "count")

    def _where(self, square: Index) -> tuple[Index, Index, Index]:
        """Image, row and column of squares."""
        across, down = self.across, self.down
        return square // (down * across), square // across % down, square % across

    def _transform_source(self, square: Index, place: Index, sources: _Own) -> tirx.Stmt:
        """B' d B of one square; pixels outside the source are zeros."""
        image, i, j = self._where(square)
        corner = i * _RESULTS - self.origin[0], j * _RESULTS - self.origin[1]

        def channels(row: Index, column: Index, begin: Index) -> tirx.Stmt:
            fast = tir.spans(
                self.channels, self.info.lanes, lambda at, n: self._inner(begin + at, place, at, sources, n)
            )
            slow = tir.spans(
                self.channels,
                self.info.lanes,
                lambda at, n: self._border((row, column), begin + at, place, at, sources, n),
            )
            return tir.choose(self._inside(row, column, _SIDE), fast, slow)

        source = self.source
        begin = image * source.image + corner[0] * source.row + corner[1] * source.channels
        return tir.bind_all((*corner, begin), "row column begin", channels)

    def _inside(self, row: Index, column: Index, side: int = 1) -> tirx.Expr:
        """Whether a square of pixels that begins there lies in the source."""
        source = self.source
        return tirx.all(row >= 0, row <= source.rows - side, column >= 0, column <= source.columns - side)

    def _step(self, number: int) -> int:
        """Elements from a square's first pixel to another."""
        return number // _SIDE * self.source.row + number % _SIDE * self.source.channels

    def _put(self, place: Index, at: Index, sources: _Own, n: int) -> Callable[[int, tirx.Expr], tirx.Stmt]:
        pitch = self.block * self.channels
        return lambda element, value: sources.store(place * self.channels + at + element * pitch, value, n)

    def _inner(self, begin: Index, place: Index, at: Index, sources: _Own, n: int) -> tirx.Stmt:
        def pixel(number: int) -> tirx.Expr:
            return tir.load(self.source.buffer, begin + self._step(number), n)

        return _both_ways((_SIDE, _SIDE), _differences, pixel, self._put(place, at, sources, n), n)

    def _border(
        self, corner: tuple[Index, Index], begin: Index, place: Index, at: Index, sources: _Own, n: int
    ) -> tirx.Stmt:
        pixels = tir.Registers(_ELEMENTS, n)

        def fetch(number: int) -> tirx.Stmt:
            value = tir.load(self.source.buffer, begin + self._step(number), n)
            exists = self._inside(corner[0] + number // _SIDE, corner[1] + number % _SIDE)
            return tir.choose(exists, pixels.set(number, 0, value, n), pixels.set(number, 0, tir.zeros(n), n))

        transformed = _both_ways(
            (_SIDE, _SIDE), _differences, lambda number: pixels.get(number, 0, n), self._put(place, at, sources, n), n
        )
        return tir.sequence([pixels.declare(), *(fetch(number) for number in range(_ELEMENTS)), transformed])

    def _features(
        self,
        first: Index,
        count: Index,
        weights: tirx.Buffer,
        sources: _Own,
        products: _Own,
        start: int,
        tiles: int,
        width: int,
    ) -> tirx.Stmt:
        """The products and results of a block, for each feature tile of one class."""
        groups = (count + (self.abreast - 1)) // self.abreast

        def tile(number: Index) -> tirx.Stmt:
            feature = start + number * width

            def element(index: Index) -> tirx.Stmt:
                panel = feature * (_ELEMENTS * self.channels) + index * (self.channels * width)
                return tir.loop(
                    groups, lambda g: self._multiply(g, index, panel, weights, sources, products, width), "group"
                )

            multiplied = tir.loop(_ELEMENTS, element, "element")
            results = tir.loop(count, lambda p: self._results(first + p, p, feature, products, width), "square")
            return tir.sequence([multiplied, results])

        return tir.loop(tiles, tile, "features")

    def _multiply(
        self,
        group: Index,
        element: Index,
        panel: Index,
        weights: tirx.Buffer,
        sources: _Own,
        products: _Own,
        width: int,
    ) -> tirx.Stmt:
        tile = RegisterTile(self.abreast, width, self.info.lanes)
        row = (element * self.block + group * self.abreast) * self.channels
        target = (element * self.block + group * self.abreast) * width

        def chain(begin: Index, at: Index, to: Index) -> tirx.Stmt:
            def step(c: Index) -> tirx.Stmt:
                return tile.multiply(
                    lambda m: tir.load(sources.buffer, at + c + m * self.channels),
                    lambda offset, n: tir.load(weights, begin + c * width + offset, n),
                )

            return tir.sequence(
                [
                    tile.declare(),
                    tile.clear(),
                    tir.loop(self.channels, step, "step"),
                    tile.save(products.buffer, lambda m, offset: to + m * width + offset),
                ]
            )

        return tir.bind_all((panel, sources.base + row, products.base + target), "begin at to", chain)

    def _results(self, square: Index, place: Index, feature: Index, products: _Own, width: int) -> tirx.Stmt:
        """A' m A of one square, and the epilogue of its results that exist."""
        image, i, j = self._where(square)

        def vectors(i: Index, j: Index, begin: Index) -> tirx.Stmt:
            return tir.sequence([vector(i, j, begin, offset, n) for offset, n in tir.segments(width, self.info.lanes)])

        def vector(i: Index, j: Index, begin: Index, offset: int, n: int) -> tirx.Stmt:
            def product(element: int) -> tirx.Expr:
                return tir.load(products.buffer, begin + (element * self.block * width + offset), n)

            values = tir.Registers(_RESULTS * _RESULTS, n)
            gathered = _both_ways(
                (_SIDE, _RESULTS), _sums, product, lambda number, value: values.set(number, 0, value, n), n
            )
            stores = [self._result(image, i, j, feature + offset, number, values, n) for number in range(4)]
            return tir.sequence([values.declare(), gathered, *stores])

        where = i * _RESULTS, j * _RESULTS, products.base + place * width
        return tir.bind_all(where, "row column begin", vectors)

    def _result(
        self, image: Index, i: Index, j: Index, feature: Index, number: int, values: tir.Registers, n: int
    ) -> tirx.Stmt:
        below, beside = divmod(number, _RESULTS)
        row, column = i + below, j + beside
        position = self.problem.position((image, row, column, feature))

        def lanes(first: Index) -> tirx.Stmt:
            def lane(index: Index) -> tirx.Stmt:
                at = image, row, column, feature + index
                return self.problem.finish(at, lambda: values.get(number, index), first + index)

            return tir.loop(n, lane, "lane", tirx.ForKind.VECTORIZED)

        exists: tirx.Expr | bool = True
        if below and self.rows % _RESULTS:
            exists = row < self.rows
        if beside and self.columns % _RESULTS:
            exists = column < self.columns if exists is True else tirx.all(exists, column < self.columns)
        return tir.choose(exists, tir.bind(position, lanes, "first"), None)


Transform = Callable[[list[tirx.Expr]], list[tirx.Expr]]


def _both_ways(
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


def _differences(d: list[tirx.Expr]) -> list[tirx.Expr]:
    """B'."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _spread(g: list[tirx.Expr], lanes: int) -> list[tirx.Expr]:
    """G."""
    half = tir.splat(tirx.FloatImm("float32", 0.5), lanes)
    outer = g[0] + g[2]
    return [g[0], (outer + g[1]) * half, (outer - g[1]) * half, g[2]]


def _sums(m: list[tirx.Expr]) -> list[tirx.Expr]:
    """A'."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
