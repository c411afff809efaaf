"""Gradients of 3x3 weights, stride one, by Winograd's F(3x3, 2x2): 16 products instead of 36.

A square d of the source and the 2x2 gradients y of its results add A'[(G y G') o (B' d B)]A to the gradient of a
window. The transforms are linear, so what is summed over squares is the middle: 16 matrix products, channels by squares
times squares by features. Squares are taken in batches that fit the caches: all threads transform a batch, then each
adds the products of some tiles to their sums; at the end the sums are transformed.
"""

from __future__ import annotations

from tvm import tirx

from autotm.kernels.code import Code, Index, TargetInfo, cut, tir
from autotm.kernels.schedules.contraction.parts import Grid, Problem, RegisterTile
from autotm.kernels.schedules.contraction.winograd.images import LEAST_CHANNELS
from autotm.kernels.schedules.contraction.winograd.squares import ELEMENTS, RESULTS, SIDE, WINDOW, Squares, both_ways

LEAST_PRODUCTS = 8_000_000
"""Squares times channels times features: with fewer, starting threads and transforming sums take what products save.

Measured on two cores: at 5 million the plain form was up to 1.3 times as fast, at 9 million and more at most 1.02.
"""
_BATCH = 256
"""Squares: each sum is then read and written once for as many products."""
_MANY_REGISTERS = 32
_TILE_VECTORS = 3


def winograd_weights_pay(problem: Problem) -> bool:
    """Whether the gradient can be computed so, and is large enough to gain by it."""
    if problem.kind != "conv2d_weight_gradient" or problem.groups > 1 or problem.stride != (1, 1):
        return False
    rows, columns, *channels = problem.shape
    if (rows, columns) != (WINDOW, WINDOW) or min(channels) < LEAST_CHANNELS:
        return False
    return _squares(problem).count * channels[0] * channels[1] >= LEAST_PRODUCTS


def winograd_weight_gradient(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Gradient with respect to a convolution's weights."""
    return _Weights(problem, info, threads).code()


def _squares(problem: Problem) -> Squares:
    """One square of the source for each 2x2 gradients of results."""
    gradient = Grid(problem.right, *tir.extents(problem.right))
    source = Grid(problem.left, *tir.extents(problem.left))
    down, across = -(-gradient.rows // RESULTS), -(-gradient.columns // RESULTS)
    return Squares(problem, source, (problem.padding[0], problem.padding[1]), down, across)


class _Weights:
    """Transformed squares lie in panels one vector wide, square after square: every tile reads streams."""

    def __init__(self, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.problem, self.lanes, self.threads = problem, info.lanes, threads
        self.gradient = Grid(problem.right, *tir.extents(problem.right))
        self.squares = _squares(problem)
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

        clear = tir.loop(ELEMENTS, zeros, "element", tirx.ForKind.PARALLEL)
        body = tir.sequence([clear, tir.loop(batches, self._batch, "batch"), self._finish()])
        return Code(body, (self.sums, self.sources, self.gradients))

    def _batch(self, number: Index) -> tirx.Stmt:
        first = number * self.batch

        def body(count: Index) -> tirx.Stmt:
            transformed = tir.loop(
                count, lambda place: self._transform(first + place, place), "square", tirx.ForKind.PARALLEL
            )
            return tir.sequence([transformed, self._multiply(count)])

        if self.squares.count % self.batch == 0:
            return body(self.batch)
        return tir.bind(tirx.min(tir.number(self.batch), self.squares.count - first), body, "count")

    # --- transforms --------------------------------------------------------------------------------------------------
    def _transform(self, square: Index, place: Index) -> tirx.Stmt:
        """B' d B and G y G' of one square."""

        def put(element: int, at: Index, value: tirx.Expr, n: int) -> tirx.Stmt:
            return tir.store(self.sources, self._panel(element, self.down, place, at), value, n)

        return tir.sequence([self.squares.transform(square, put, self.lanes), self._gradient(square, place)])

    def _panel(self, element: Index, panels: int, square: Index, at: Index) -> Index:
        """Where the channel (or feature) `at` of a square lies, of an element with so many panels."""
        panel = element * panels + at // self.lanes
        return (panel * self.pitch + square) * self.lanes + at % self.lanes

    def _gradient(self, square: Index, place: Index) -> tirx.Stmt:
        image, i, j = self.squares.place(square)
        gradient = self.gradient
        begin = image * gradient.image + i * (RESULTS * gradient.row) + j * (RESULTS * gradient.channels)

        def vector(begin: Index, below: tirx.Expr | bool, beside: tirx.Expr | bool, at: Index, n: int) -> tirx.Stmt:
            pixels = tir.Registers(RESULTS * RESULTS, n)

            def fetch(number: int) -> tirx.Stmt:
                down, across = divmod(number, RESULTS)
                value = tir.load(gradient.buffer, begin + at + (down * gradient.row + across * gradient.channels), n)
                wanted = [c for c, used in ((below, down), (beside, across)) if used and not isinstance(c, bool)]
                exists = tirx.all(*wanted) if wanted else True
                return tir.choose(exists, pixels.set(number, 0, value, n), pixels.set(number, 0, tir.zeros(n), n))

            def put(element: int, value: tirx.Expr) -> tirx.Stmt:
                return tir.store(self.gradients, self._panel(element, self.across, place, at), value, n)

            transformed = both_ways(
                (RESULTS, SIDE), lambda values: _spread(values, n), lambda number: pixels.get(number, 0, n), put, n
            )
            return tir.sequence([pixels.declare(), *(fetch(number) for number in range(RESULTS**2)), transformed])

        below = i * RESULTS + 1 < gradient.rows if gradient.rows % RESULTS else True
        beside = j * RESULTS + 1 < gradient.columns if gradient.columns % RESULTS else True
        return tir.bind(
            begin,
            lambda start: tir.spans(self.features, self.lanes, lambda at, n: vector(start, below, beside, at, n)),
            "begin",
        )

    # --- products ----------------------------------------------------------------------------------------------------
    def _multiply(self, count: Index) -> tirx.Stmt:
        """Add the products of a batch to the sums: threads share elements and tiles of features."""
        units = ELEMENTS * self.tiles.count
        tasks = min(self.threads, units)

        def unit(index: Index) -> tirx.Stmt:
            element, tile = index // self.tiles.count, index % self.tiles.count
            return tir.pick(self.tiles, tile, lambda first, size: self._channels(element, first, size, count))

        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, tasks, units)
            return tir.loop(last - first, unit, "unit", start=first)

        return tir.loop(tasks, task, "task", tirx.ForKind.PARALLEL)

    def _channels(self, element: Index, first: Index, vectors: int, count: Index) -> tirx.Stmt:
        """Sums of all channels and the features of `vectors` vectors; those past the last channel are never read."""

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
        return tir.sequence([tile.declare(), tile.clear(), summed, added, tile.save(self.sums, place)])

    # --- results -----------------------------------------------------------------------------------------------------
    def _finish(self) -> tirx.Stmt:
        """A' m A of every channel and feature, and the epilogue."""
        pitch = self.across * self.lanes

        def channel(c: Index) -> tirx.Stmt:
            def vector(at: Index, n: int) -> tirx.Stmt:
                values = tir.Registers(WINDOW * WINDOW, n)
                gathered = both_ways(
                    (SIDE, WINDOW),
                    _gathered,
                    lambda number: tir.load(self.sums, number * self.size + c * pitch + at, n),
                    lambda number, value: values.set(number, 0, value, n),
                    n,
                )
                stores = [self._store(c, at, number, values, n) for number in range(WINDOW * WINDOW)]
                return tir.sequence([values.declare(), gathered, *stores])

            return tir.spans(self.features, self.lanes, vector)

        return tir.loop(self.channels, channel, "channel", tirx.ForKind.PARALLEL)

    def _store(self, channel: Index, at: Index, number: int, values: tir.Registers, n: int) -> tirx.Stmt:
        tap = divmod(number, WINDOW)

        def lane(index: Index) -> tirx.Stmt:
            where = *tap, channel, at + index
            return self.problem.finish(where, lambda: values.get(number, index), self.problem.position(where))

        return tir.loop(n, lane, "lane", tirx.ForKind.VECTORIZED)


def _spread(y: list[tirx.Expr], lanes: int) -> list[tirx.Expr]:
    """G y, for two values."""
    half = tir.splat(tirx.FloatImm("float32", 0.5), lanes)
    return [y[0], (y[0] + y[1]) * half, (y[0] - y[1]) * half, y[1]]


def _gathered(m: list[tirx.Expr]) -> list[tirx.Expr]:
    """A' m, for three results."""
    return [m[0] + m[1] + m[2], m[1] - m[2], m[1] + m[2] - m[3]]
