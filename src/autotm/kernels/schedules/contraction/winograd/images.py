"""3x3 convolutions and data gradients of stride one by Winograd's F(2x2, 3x3): 16 products instead of 36.

Four neighbouring results are A'[(G g G') o (B' d B)]A of a 4x4 square d of the source and a window g of weights, o the
product of elements (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308). Summed over
channels, each of the 16 elements is a matrix product of squares by features. Threads take blocks of squares: they
transform a block's source, multiply it by the transformed weights of one tile of features after the other, and
transform the products back; transformed sources and products of a block stay in the second-level cache.

Sums are shorter than those of the plain form, and rounding is no worse. No padded copy is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import CHAIN_STEPS, Code, Index, TargetInfo, register_tiles, tir
from autotm.kernels.schedules.contraction.forms import Pixels, Source, feature_tiles
from autotm.kernels.schedules.contraction.parts import Problem, RegisterTile, RowMajor, Taps, Turned
from autotm.kernels.schedules.contraction.winograd.squares import ELEMENTS, SIDE, WINDOW, Squares, both_ways, spread

LEAST_SQUARES = 128
"""Transforming the weights takes as long as some 80 squares save, whatever the channels (measured)."""
LEAST_CHANNELS = 32
"""With fewer, transforming sources and results takes as long as the products that it saves."""
_LEAST_TILES, _LEAST_TILES_OF_MANY = 4, 8
"""Register tiles of squares in a block even where they do not fit: every block reads all transformed weights again.

More of them where the weights are far larger than the second-level cache: 0.82 to 0.94 of the time (measured), while
smaller ones gained nothing.
"""
_FAR_LARGER = 3


def winograd_pays(problem: Problem) -> bool:
    """Whether the contraction can be computed so, and is large enough to gain by it."""
    if problem.kind not in {"conv2d", "conv2d_data_gradient"} or problem.groups > 1 or problem.stride != (1, 1):
        return False
    rows, columns, *channels = tir.extents(problem.right)
    if (rows, columns) != (WINDOW, WINDOW) or min(channels) < LEAST_CHANNELS or max(channels) > CHAIN_STEPS:
        return False
    return Squares.of(problem, (0, 0)).count >= LEAST_SQUARES


def winograd_forward(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Convolution."""
    _, _, channels, features = tir.extents(problem.right)
    top, left, _, _ = problem.padding
    operand = RowMajor(problem.right, WINDOW * WINDOW * channels, features)
    return _Winograd(Squares.of(problem, (top, left)), info, threads, channels, operand).code()


def winograd_data_gradient(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Gradient by the input: a convolution of the result's gradient with turned weights."""
    shape = tir.extents(problem.right)
    top, left, _, _ = problem.padding
    taps = Taps(0, 1, WINDOW)
    operand = Turned(problem.right, shape, taps, taps)
    squares = Squares.of(problem, (WINDOW - 1 - top, WINDOW - 1 - left))
    return _Winograd(squares, info, threads, shape[3], operand).code()


@dataclass(frozen=True)
class _Class:
    """Tiles of equally many features."""

    start: int
    """The first feature of the first."""
    count: int
    width: int


class _Winograd:
    def __init__(
        self, squares: Squares, info: TargetInfo, threads: int, channels: int, operand: RowMajor | Turned
    ) -> None:
        self.squares, self.info, self.threads = squares, info, threads
        self.channels, self.operand = channels, operand
        self.features = squares.problem.shape[3]
        self.abreast = register_tiles(1, squares.count, self.features, channels, info).columns.size
        self.classes = self._classes()
        self.widest = max(each.width for each in self.classes)
        self.block = self._block_squares()
        self.blocks = -(-squares.count // self.block)
        self.tasks = min(threads, self.blocks)
        lanes, element = info.lanes, self.channels * self.features
        self.weights = tir.workspace(ELEMENTS * element, "weights")
        self.turned = tir.workspace(operand.steps * self.features, "turned") if isinstance(operand, Turned) else None
        self.sources = tir.workspace(self.tasks * ELEMENTS * self.block * channels, "sources")
        self.products = tir.workspace(self.tasks * ELEMENTS * self.block * self.widest, "products")
        self.lanes = lanes

    def _classes(self) -> list[_Class]:
        """Feature tiles as those of one of the 16 matrix products."""
        problem, extents = self.squares.problem, (1, 1, self.squares.count, self.features, (1, 1), self.channels)
        source, operand = Source(problem.left, 0, 0, 0, 0, 0), RowMajor(problem.right, self.channels, self.features)
        product = Pixels(*extents, source, operand, lambda n, i, j, k: (n, i, j, k))
        found, start = [], 0
        for _, count, width in feature_tiles(product, self.info):
            found.append(_Class(start, count, width))
            start += count * width
        return found

    def _block_squares(self) -> int:
        """Squares of a block: as many as half the second-level cache holds, or a few tiles of them; equal shares."""
        count = self.squares.count
        fitting = self.info.l2_bytes // 2 // (4 * ELEMENTS * (self.channels + self.widest))
        weights_bytes = 4 * ELEMENTS * self.channels * self.features
        is_far_larger = weights_bytes > _FAR_LARGER * self.info.l2_bytes
        tiles = _LEAST_TILES_OF_MANY if is_far_larger else _LEAST_TILES
        blocks = -(-count // max(tiles * self.abreast, fitting))
        if blocks > 1:
            blocks = -(-blocks // self.threads) * self.threads
        share = -(-count // max(blocks, min(self.threads, count)))
        return -(-share // self.abreast) * self.abreast

    def code(self) -> Code:
        """Transform the weights, then take the blocks."""
        statements: list[tirx.Stmt] = []
        spaces = [self.weights, self.sources, self.products]
        if self.turned is not None:
            statements += [self._turn(self.turned, each) for each in self.classes]
            spaces.append(self.turned)
        statements += [self._transform_weights(each) for each in self.classes]

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, self.blocks)
            return tir.loop(last - first, lambda block: self._block(block, index), "block", start=first)

        statements.append(tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL))
        return Code(tir.sequence(statements), tuple(spaces))

    # --- weights -----------------------------------------------------------------------------------------------------
    def _turn(self, turned: tirx.Buffer, tiles: _Class) -> tirx.Stmt:
        operand, width = self.operand, tiles.width

        def part(index: Index) -> tirx.Stmt:
            feature = tiles.start + index // operand.parts * width
            return operand.fill(index % operand.parts, feature, width, turned, feature * operand.steps, self.lanes)

        return tir.loop(tiles.count * operand.parts, part, "part", tirx.ForKind.PARALLEL)

    def _transform_weights(self, tiles: _Class) -> tirx.Stmt:
        """G g G' of every channel, for the feature tiles of one class."""
        width, turned = tiles.width, self.turned
        source, pitch = (self.operand.buffer, self.features) if turned is None else (turned, width)

        def unit(index: Index) -> tirx.Stmt:
            feature, channel = tiles.start + index // self.channels * width, index % self.channels
            begin = feature if turned is None else feature * self.operand.steps
            target = feature * (ELEMENTS * self.channels) + channel * width

            def vector(offset: int, n: int) -> tirx.Stmt:
                def weight(tap: int) -> tirx.Expr:
                    return tir.load(source, begin + ((tap * self.channels + channel) * pitch + offset), n)

                def put(element: int, value: tirx.Expr) -> tirx.Stmt:
                    return tir.store(self.weights, target + (element * self.channels * width + offset), value, n)

                return both_ways((WINDOW, SIDE), lambda values: spread(values, n), weight, put, n)

            return tir.sequence([vector(offset, n) for offset, n in tir.segments(width, self.lanes)])

        return tir.loop(tiles.count * self.channels, unit, "channel", tirx.ForKind.PARALLEL)

    # --- blocks ------------------------------------------------------------------------------------------------------
    def _block(self, block: Index, task: Index) -> tirx.Stmt:
        first, count = block * self.block, self.squares.count
        size = ELEMENTS * self.block
        own = task * (size * self.channels), task * (size * self.widest)

        def body(squares: Index) -> tirx.Stmt:
            def transform(place: Index) -> tirx.Stmt:
                def put(element: int, at: Index, value: tirx.Expr, n: int) -> tirx.Stmt:
                    target = own[0] + (element * self.block + place) * self.channels + at
                    return tir.store(self.sources, target, value, n)

                return self.squares.transform(first + place, put, self.lanes)

            transformed = tir.loop(squares, transform, "square")
            return tir.sequence([transformed, *(self._features(first, squares, own, each) for each in self.classes)])

        if count % self.block == 0:
            return body(self.block)
        return tir.bind(tirx.min(tir.number(self.block), count - first), body, "squares")

    def _features(self, first: Index, squares: Index, own: tuple[Index, Index], tiles: _Class) -> tirx.Stmt:
        """The products and results of a block, for the feature tiles of one class."""
        groups = (squares + (self.abreast - 1)) // self.abreast
        width = tiles.width

        def tile(number: Index) -> tirx.Stmt:
            feature = tiles.start + number * width

            def element(index: Index) -> tirx.Stmt:
                panel = feature * (ELEMENTS * self.channels) + index * (self.channels * width)

                def group(number: Index) -> tirx.Stmt:
                    row = index * self.block + number * self.abreast
                    places = panel, own[0] + row * self.channels, own[1] + row * width
                    return tir.bind_all(places, "begin at to", lambda *where: self._multiply(where, width))

                return tir.loop(groups, group, "group")

            def result(place: Index) -> tirx.Stmt:
                def product(number: int, at: Index, n: int) -> tirx.Expr:
                    return tir.load(self.products, own[1] + (number * self.block + place) * width + at, n)

                return self.squares.finish(first + place, feature, width, product, self.lanes)

            multiplied = tir.loop(ELEMENTS, element, "element")
            return tir.sequence([multiplied, tir.loop(squares, result, "square")])

        return tir.loop(tiles.count, tile, "features")

    def _multiply(self, where: tuple[Index, ...], width: int) -> tirx.Stmt:
        """One register tile of one element's matrix product; squares beyond the block's last are computed, not used."""
        panel, at, to = where
        tile = RegisterTile(self.abreast, width, self.lanes)

        def step(channel: Index) -> tirx.Stmt:
            return tile.multiply(
                lambda m: tir.load(self.sources, at + channel + m * self.channels),
                lambda offset, n: tir.load(self.weights, panel + channel * width + offset, n),
            )

        summed = tir.loop(self.channels, step, "step")
        saved = tile.save(self.products, lambda m, offset: to + m * width + offset)
        return tir.sequence([tile.declare(), tile.clear(), summed, saved])
