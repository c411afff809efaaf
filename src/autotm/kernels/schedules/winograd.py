"""3x3 convolutions of stride one, and their gradients, by Winograd's transforms: 16 products instead of 36."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.schedules.panels import Grid, Operand, RegisterTile, RowMajor, Taps, Turned
from autotm.kernels.schedules.pixels import FeatureTiles, Pixels, Source, feature_tiles
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.target import CHAIN_STEPS, TargetInfo, cut, register_tiles
from autotm.kernels.tir import Code, Index

# Squares of Winograd's F(2x2, 3x3): where they lie, and how they are transformed; what for, is said below.

WINDOW, SIDE, RESULTS = 3, 4, 2
"""Sides of the weights, of a square of the source, and of its results."""
ELEMENTS = SIDE * SIDE

Put = Callable[[int, Index, tirx.Expr, int], tirx.Stmt]
"""Store a vector of an element of a transformed square: (element, first channel, value, lanes)."""
Get = Callable[[int, Index, int], tirx.Expr]
"""A vector of an element of a square's products: (element, first feature of the tile, lanes)."""
Transform = Callable[[list[tirx.Expr]], list[tirx.Expr]]
Exists = Callable[[int], tirx.Expr | bool]


@dataclass(frozen=True)
class Squares:
    """4x4 squares of a source that overlap by two, one for each 2x2 results."""

    problem: Problem
    source: Grid
    origin: tuple[int, int]
    """How far the first square begins above and left of the source."""
    down: int
    across: int

    @classmethod
    def of(cls, problem: Problem, origin: tuple[int, int], results: tuple[int, ...]) -> Squares:
        """Return the squares of all results, a grid of that shape; the source is the problem's left operand."""
        _, rows, columns, _ = results
        return cls(problem, Grid.of(problem.left), origin, -(-rows // RESULTS), -(-columns // RESULTS))

    @property
    def count(self) -> int:
        """Number of squares in all images."""
        return self.source.batch * self.down * self.across

    def place(self, square: Index) -> tuple[Index, Index, Index]:
        """Return the image, row and column of squares."""
        return square // (self.down * self.across), square // self.across % self.down, square % self.across

    def transform(self, square: Index, put: Put, lanes: int) -> tirx.Stmt:
        """Emit B' d B of one square; pixels outside the source are zeros."""
        image, i, j = self.place(square)
        source = self.source
        row, column = i * RESULTS - self.origin[0], j * RESULTS - self.origin[1]
        begin = image * source.image + row * source.row + column * source.channels

        def channels(row: Index, column: Index, begin: Index) -> tirx.Stmt:
            def vectors(exists: Exists | None) -> tirx.Stmt:
                def vector(at: Index, n: int) -> tirx.Stmt:
                    def pixel(number: int) -> tirx.Expr:
                        step = number // SIDE * source.row + number % SIDE * source.channels
                        return tir.load(source.buffer, begin + at + step, n)

                    stored = lambda element, value: put(element, at, value, n)  # noqa: E731
                    return both_ways((SIDE, SIDE), differences, pixel, stored, n, exists)

                return tir.spans(source.channels, lanes, vector)

            inner = vectors(None)
            border = vectors(lambda number: self._inside(row + number // SIDE, column + number % SIDE))
            return tir.choose(self._inside(row, column, SIDE), inner, border)

        return tir.bind_all((row, column, begin), "row column begin", channels)

    def _inside(self, row: Index, column: Index, side: int = 1) -> tirx.Expr:
        """Return whether a square of pixels that begins there lies in the source."""
        source = self.source
        return tirx.all(row >= 0, row <= source.rows - side, column >= 0, column <= source.columns - side)

    def finish(self, square: Index, feature: Index, width: int, product: Get, lanes: int) -> tirx.Stmt:
        """Emit A' m A of one square, and the epilogue of those of its results that exist."""
        image, i, j = self.place(square)

        def vectors(row: Index, column: Index) -> tirx.Stmt:
            def vector(at: int, n: int) -> tirx.Stmt:
                where = image, row, column, feature + at
                return finished(
                    (SIDE, RESULTS),
                    sums,
                    lambda number: product(number, at, n),
                    lambda number, values: self._result(where, number, values, n),
                    n,
                )

            return tir.sequence([vector(at, n) for at, n in tir.segments(width, lanes)])

        return tir.bind_all((i * RESULTS, j * RESULTS), "row column", vectors)

    def _result(self, where: tuple[Index, ...], number: int, values: tir.Registers, n: int) -> tirx.Stmt:
        (image, row, column, feature), (below, right) = where, divmod(number, RESULTS)
        row, column = row + below, column + right
        _, rows, columns, _ = self.problem.shape

        def lanes(first: Index) -> tirx.Stmt:
            def lane(index: Index) -> tirx.Stmt:
                at = image, row, column, feature + index
                return self.problem.finish(at, lambda: values.get(number, index), first + index)

            return tir.vector(n, lane)

        outside = [row < rows] if below and rows % RESULTS else []
        outside += [column < columns] if right and columns % RESULTS else []
        exists = tirx.all(*outside) if outside else True
        position = self.problem.position((image, row, column, feature))
        return tir.choose(exists, tir.bind(position, lanes, "first"), None)


def both_ways(
    sides: tuple[int, int],
    transform: Transform,
    get: Callable[[int], tirx.Expr],
    put: Callable[[int, tirx.Expr], tirx.Stmt],
    lanes: int,
    exists: Exists | None = None,
) -> tirx.Stmt:
    """Transform the columns, then the rows, of a square of vectors: from side `sides[0]` to side `sides[1]`.

    `get` and `put` take a vector's number; zeros stand for vectors that do not exist.
    """
    before, after = sides
    if exists is not None:
        values = tir.Registers(before**2, lanes)

        def fetch(number: int) -> tirx.Stmt:
            fetched, nothing = (values.set(number, 0, value, lanes) for value in (get(number), tir.zeros(lanes)))
            return tir.choose(exists(number), fetched, nothing)

        from_registers = both_ways(sides, transform, lambda number: values.get(number, 0, lanes), put, lanes)
        return tir.sequence([values.declare(), *map(fetch, range(before**2)), from_registers])
    half = tir.Registers(after * before, lanes)
    statements = [half.declare()]
    for column in range(before):
        values = transform([get(row * before + column) for row in range(before)])
        statements += [half.set(row * before + column, 0, value, lanes) for row, value in enumerate(values)]
    for row in range(after):
        values = transform([half.get(row * before + column, 0, lanes) for column in range(before)])
        statements += [put(row * after + column, value) for column, value in enumerate(values)]
    return tir.sequence(statements)


def finished(
    sides: tuple[int, int],
    transform: Transform,
    get: Callable[[int], tirx.Expr],
    store: Callable[[int, tir.Registers], tirx.Stmt],
    lanes: int,
) -> tirx.Stmt:
    """Transform as `both_ways` to registers, then store each result, given its number and the registers of all."""
    values = tir.Registers(sides[1] ** 2, lanes)
    gathered = both_ways(sides, transform, get, lambda number, value: values.set(number, 0, value, lanes), lanes)
    return tir.sequence([values.declare(), gathered, *(store(number, values) for number in range(sides[1] ** 2))])


def differences(d: list[tirx.Expr]) -> list[tirx.Expr]:
    """Compute B' d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def spread(g: list[tirx.Expr], lanes: int) -> list[tirx.Expr]:
    """Compute G g, for vectors of `lanes`."""
    half = tir.constant(0.5, lanes)
    outer = g[0] + g[2]
    return [g[0], (outer + g[1]) * half, (outer - g[1]) * half, g[2]]


def sums(m: list[tirx.Expr]) -> list[tirx.Expr]:
    """Compute A' m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


# 3x3 convolutions and data gradients of stride one by Winograd's F(2x2, 3x3): 16 products instead of 36.
#
# Four neighbouring results are A'[(G g G') o (B' d B)]A of a 4x4 square d of the source and a window g of weights, o
# the product of elements (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308).
# Summed over channels, each of the 16 elements is a matrix product of squares by features. Threads take blocks of
# squares: they transform a block's source, multiply it by the transformed weights of one tile of features after the
# other, and transform the products back; transformed sources and products of a block stay in the second-level cache.
#
# Sums are shorter than those of the plain form, and rounding is no worse. No padded copy is made.

LEAST_SQUARES = 128
"""Transforming the weights takes as long as some 80 squares save, whatever the channels (measured)."""
LEAST_CHANNELS = 32
"""With fewer channels, transforming sources and results takes as long as the products that it saves."""
_LEAST_TILES, _LEAST_TILES_OF_MANY = 4, 8
"""Register tiles of squares in a block even where they do not fit: every block reads all transformed weights again.

More of them where the weights are far larger than the second-level cache: 0.82 to 0.94 of the time (measured), while
smaller ones gained nothing.
"""
_FAR_LARGER = 3  # Weights are far larger at so many times the second-level cache.


def winograd_pays(problem: Problem) -> bool:
    """Return whether the contraction can be computed so, and is large enough to gain by it."""
    if problem.groups > 1 or problem.stride != (1, 1):
        return False
    rows, columns, *channels = tir.extents(problem.right)
    if (rows, columns) != (WINDOW, WINDOW) or min(channels) < LEAST_CHANNELS or max(channels) > CHAIN_STEPS:
        return False
    return Squares.of(problem, (0, 0), problem.shape).count >= LEAST_SQUARES


def winograd_forward(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit a convolution."""
    _, _, channels, features = tir.extents(problem.right)
    operand = RowMajor(problem.right, WINDOW * WINDOW * channels, features)
    return _Winograd(Squares.of(problem, problem.padding[:2], problem.shape), info, threads, channels, operand).code()


def winograd_data_gradient(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit the gradient by the input: a convolution of the result's gradient with turned weights."""
    shape, taps = tir.extents(problem.right), Taps(0, 1, WINDOW)
    operand = Turned(problem.right, shape, taps, taps)
    top, left = (WINDOW - 1 - before for before in problem.padding[:2])
    squares = Squares.of(problem, (top, left), problem.shape)
    return _Winograd(squares, info, threads, shape[3], operand).code()


class _Winograd:
    def __init__(self, squares: Squares, info: TargetInfo, threads: int, channels: int, operand: Operand) -> None:
        self.squares, self.channels, self.operand = squares, channels, operand
        self.features = squares.problem.shape[3]
        self.abreast = register_tiles(1, squares.count, self.features, channels, info).columns.size
        # Feature tiles as those of one of the 16 matrix products.
        product = Pixels(
            *(1, 1, squares.count, self.features, (1, 1), channels, Source(squares.problem.left, 0, 0, 0, 0, 0)),
            RowMajor(squares.problem.right, channels, self.features),
            lambda n, i, j, k: (n, i, j, k),
        )
        self.classes = feature_tiles(product, info)
        self.widest = max(each.width for each in self.classes)
        # A block has as many squares as half the second-level cache holds, or a few tiles; blocks are equal.
        fitting = info.l2_bytes // 2 // (4 * ELEMENTS * (channels + self.widest))
        is_far_larger = 4 * ELEMENTS * channels * self.features > _FAR_LARGER * info.l2_bytes
        tiles = _LEAST_TILES_OF_MANY if is_far_larger else _LEAST_TILES
        blocks = -(-squares.count // max(tiles * self.abreast, fitting))
        blocks = -(-blocks // threads) * threads if blocks > 1 else 1
        share = -(-squares.count // max(blocks, min(threads, squares.count)))
        self.block = -(-share // self.abreast) * self.abreast
        self.blocks = -(-squares.count // self.block)
        self.tasks = min(threads, self.blocks)
        self.lanes = info.lanes
        self.weights = tir.workspace(ELEMENTS * channels * self.features, "weights")
        self.turned = tir.workspace(operand.steps * self.features, "turned") if isinstance(operand, Turned) else None
        self.sources = tir.workspace(self.tasks * ELEMENTS * self.block * channels, "sources")
        self.products = tir.workspace(self.tasks * ELEMENTS * self.block * self.widest, "products")

    def code(self) -> Code:
        """Transform the weights, then take the blocks."""
        statements: list[tirx.Stmt] = []
        spaces = [self.weights, self.sources, self.products]
        if self.turned is not None:
            statements += [self._turn(self.turned, each) for each in self.classes]
            spaces.append(self.turned)
        statements += [self._transform_weights(each) for each in self.classes]
        statements.append(tir.in_tasks(self.tasks, self.blocks, self._block, "block"))
        return Code(tir.sequence(statements), tuple(spaces))

    def _turn(self, turned: tirx.Buffer, tiles: FeatureTiles) -> tirx.Stmt:
        operand, width = self.operand, tiles.width

        def part(index: Index) -> tirx.Stmt:
            feature = tiles.start + index // operand.parts * width
            return operand.fill(index % operand.parts, feature, width, turned, feature * operand.steps, self.lanes)

        return tir.parallel(tiles.count * operand.parts, part, "part")

    def _transform_weights(self, tiles: FeatureTiles) -> tirx.Stmt:
        """Emit G g G' of every channel, for the feature tiles of one class."""
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

        return tir.parallel(tiles.count * self.channels, unit, "channel")

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

    def _features(self, first: Index, squares: Index, own: tuple[Index, Index], tiles: FeatureTiles) -> tirx.Stmt:
        """Emit the products and results of a block, for the feature tiles of one class."""
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
        """Emit a register tile of one element's product; squares beyond the block's last are computed, not used."""
        panel, at, to = where
        tile = RegisterTile(self.abreast, width, self.lanes)

        def step(channel: Index) -> tirx.Stmt:
            return tile.multiply(
                lambda m: tir.load(self.sources, at + channel + m * self.channels),
                lambda offset, n: tir.load(self.weights, panel + channel * width + offset, n),
            )

        summed = tir.loop(self.channels, step, "step")
        saved = tile.save(self.products, lambda m, offset: to + m * width + offset)
        return tir.sequence([tile.start(), summed, saved])


# Gradients of 3x3 weights, stride one, by Winograd's F(3x3, 2x2): 16 products instead of 36.
#
# A square d of the source and the 2x2 gradients y of its results add A'[(G y G') o (B' d B)]A to the gradient of a
# window. The transforms are linear, so what is summed over squares is the middle: 16 matrix products, channels by
# squares times squares by features. Squares are taken in batches that fit the caches: all threads transform a batch,
# then each adds the products of some tiles to their sums; at the end the sums are transformed.

LEAST_PRODUCTS = 8_000_000
"""Squares times channels times features: with fewer, starting threads and transforming sums take what products save.

Measured on two cores: at 5 million the plain form was up to 1.3 times as fast, at 9 million and more at most 1.02.
"""
_BATCH = 256
"""Squares: each sum is then read and written once for as many products."""
_MANY_REGISTERS = 32  # Vector registers of AVX-512.
_TILE_VECTORS = 3  # Vectors of features in a register tile.


def winograd_weights_pay(problem: Problem) -> bool:
    """Return whether the gradient can be computed so, and is large enough to gain by it."""
    if problem.groups > 1 or problem.stride != (1, 1):
        return False
    rows, columns, *channels = problem.shape
    if (rows, columns) != (WINDOW, WINDOW) or min(channels) < LEAST_CHANNELS:
        return False
    return _gradient_squares(problem).count * channels[0] * channels[1] >= LEAST_PRODUCTS


def winograd_weight_gradient(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit the gradient with respect to a convolution's weights."""
    return _Weights(problem, info, threads).code()


def _gradient_squares(problem: Problem) -> Squares:
    return Squares.of(problem, problem.padding[:2], tir.extents(problem.right))


class _Weights:
    """Transformed squares lie in panels one vector wide, square after square: every tile reads streams."""

    def __init__(self, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.problem, self.lanes, self.threads = problem, info.lanes, threads
        self.gradient = Grid.of(problem.right)
        self.squares = _gradient_squares(problem)
        _, _, self.channels, self.features = problem.shape
        self.batch = -(-self.squares.count // -(-self.squares.count // _BATCH))
        # An odd number of cache lines a panel: the elements of a square do not meet in one set of the cache.
        self.pitch = self.batch | 1
        # Sums of `rows` channels by a few vectors of features fill the registers, and `rows` divide a vector.
        self.rows = 8 if info.registers >= _MANY_REGISTERS else 4
        self.across, self.down = -(-self.features // self.lanes), -(-self.channels // self.lanes)
        self.tiles = cut(self.across, _TILE_VECTORS)
        self.size = self.down * self.lanes * self.across * self.lanes
        self.sums = tir.workspace(ELEMENTS * self.size, "sums")
        self.sources = tir.workspace(ELEMENTS * self.pitch * self.down * self.lanes, "sources")
        self.gradients = tir.workspace(ELEMENTS * self.pitch * self.across * self.lanes, "gradients")

    def code(self) -> Code:
        """Clear the sums, take the batches, transform the sums."""
        batches = -(-self.squares.count // self.batch)

        def zeros(element: Index) -> tirx.Stmt:
            def vector(at: Index, n: int) -> tirx.Stmt:
                return tir.store(self.sums, element * self.size + at, tir.zeros(n), n)

            return tir.spans(self.size, self.lanes, vector)

        clear = tir.parallel(ELEMENTS, zeros, "element")
        body = tir.sequence([clear, tir.loop(batches, self._batch, "batch"), self._finish()])
        return Code(body, (self.sums, self.sources, self.gradients))

    def _batch(self, number: Index) -> tirx.Stmt:
        first = number * self.batch

        def body(count: Index) -> tirx.Stmt:
            transformed = tir.parallel(count, lambda place: self._transform(first + place, place), "square")
            return tir.sequence([transformed, self._multiply(count)])

        if self.squares.count % self.batch == 0:
            return body(self.batch)
        return tir.bind(tirx.min(tir.number(self.batch), self.squares.count - first), body, "count")

    def _transform(self, square: Index, place: Index) -> tirx.Stmt:
        """Emit B' d B and G y G' of one square."""

        def put(element: int, at: Index, value: tirx.Expr, n: int) -> tirx.Stmt:
            return tir.store(self.sources, self._panel(element, self.down, place, at), value, n)

        return tir.sequence([self.squares.transform(square, put, self.lanes), self._gradient(square, place)])

    def _panel(self, element: Index, panels: int, square: Index, at: Index) -> Index:
        """Return where the channel (or feature) `at` of a square lies, of an element with so many panels."""
        panel = element * panels + at // self.lanes
        return (panel * self.pitch + square) * self.lanes + at % self.lanes

    def _gradient(self, square: Index, place: Index) -> tirx.Stmt:
        image, i, j = self.squares.place(square)
        gradient = self.gradient
        begin = image * gradient.image + i * (RESULTS * gradient.row) + j * (RESULTS * gradient.channels)

        def vectors(begin: Index) -> tirx.Stmt:
            below = i * RESULTS + 1 < gradient.rows if gradient.rows % RESULTS else True
            right = j * RESULTS + 1 < gradient.columns if gradient.columns % RESULTS else True

            def exists(number: int) -> tirx.Expr | bool:
                down, across = divmod(number, RESULTS)
                wanted = [c for c, used in ((below, down), (right, across)) if used and not isinstance(c, bool)]
                return tirx.all(*wanted) if wanted else True

            def vector(at: Index, n: int) -> tirx.Stmt:
                def pixel(number: int) -> tirx.Expr:
                    down, across = divmod(number, RESULTS)
                    step = down * gradient.row + across * gradient.channels
                    return tir.load(gradient.buffer, begin + at + step, n)

                def put(element: int, value: tirx.Expr) -> tirx.Stmt:
                    return tir.store(self.gradients, self._panel(element, self.across, place, at), value, n)

                return both_ways((RESULTS, SIDE), lambda values: _spread(values, n), pixel, put, n, exists)

            return tir.spans(self.features, self.lanes, vector)

        return tir.bind(begin, vectors, "begin")

    def _multiply(self, count: Index) -> tirx.Stmt:
        """Add the products of a batch to the sums: threads share elements and tiles of features."""
        units = ELEMENTS * self.tiles.count

        def unit(index: Index, _task: Index) -> tirx.Stmt:
            element, tile = index // self.tiles.count, index % self.tiles.count
            return tir.pick(self.tiles, tile, lambda first, size: self._channels(element, first, size, count))

        return tir.in_tasks(min(self.threads, units), units, unit, "unit")

    def _channels(self, element: Index, first: Index, vectors: int, count: Index) -> tirx.Stmt:
        """Emit sums over all channels for the features of `vectors` vectors; those past the last are never read."""

        def rows(number: Index) -> tirx.Stmt:
            channel = number * self.rows
            places = (
                self._panel(element, self.down, 0, channel),
                self._panel(element, self.across, 0, first * self.lanes),
                element * self.size + (channel * self.across + first) * self.lanes,
            )
            return tir.bind_all(places, "at begin to", lambda *where: self._tile(where, vectors, count))

        return tir.loop(-(-self.channels // self.rows), rows, "channels")

    def _tile(self, where: tuple[Index, ...], vectors: int, count: Index) -> tirx.Stmt:
        at, begin, to = where
        lanes = self.lanes
        tile = RegisterTile(self.rows, vectors * lanes, lanes)

        def step(square: Index) -> tirx.Stmt:
            return tile.multiply(
                lambda m: tir.load(self.sources, at + square * lanes + m),
                lambda offset, n: tir.load(self.gradients, begin + offset * self.pitch + square * lanes, n),
            )

        def place(m: int, offset: int) -> Index:
            return to + m * (self.across * lanes) + offset

        added = tile.add(lambda m, offset, n: tir.load(self.sums, place(m, offset), n))
        summed = tir.loop(count, step, "step")
        return tir.sequence([tile.start(), summed, added, tile.save(self.sums, place)])

    def _finish(self) -> tirx.Stmt:
        """Emit A' m A of every channel and feature, and the epilogue."""
        pitch = self.across * self.lanes

        def channel(c: Index) -> tirx.Stmt:
            def vector(at: Index, n: int) -> tirx.Stmt:
                return finished(
                    (SIDE, WINDOW),
                    _gathered,
                    lambda number: tir.load(self.sums, number * self.size + c * pitch + at, n),
                    lambda number, values: self._store(c, at, number, values, n),
                    n,
                )

            return tir.spans(self.features, self.lanes, vector)

        return tir.parallel(self.channels, channel, "channel")

    def _store(self, channel: Index, at: Index, number: int, values: tir.Registers, n: int) -> tirx.Stmt:
        tap = divmod(number, WINDOW)

        def lane(index: Index) -> tirx.Stmt:
            where = *tap, channel, at + index
            return self.problem.finish(where, lambda: values.get(number, index), self.problem.position(where))

        return tir.vector(n, lane)


def _spread(y: list[tirx.Expr], lanes: int) -> list[tirx.Expr]:
    """Compute G y, for two values."""
    half = tir.constant(0.5, lanes)
    return [y[0], (y[0] + y[1]) * half, (y[0] - y[1]) * half, y[1]]


def _gathered(m: list[tirx.Expr]) -> list[tirx.Expr]:
    """Compute A' m, for three results."""
    return [m[0] + m[1] + m[2], m[1] - m[2], m[1] + m[2] - m[3]]
