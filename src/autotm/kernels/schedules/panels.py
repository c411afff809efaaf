"""Parts of every contraction's code: packed panels, padded grids, register tiles, and sums that wait in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.target import CHAIN_STEPS, Cut, TargetInfo
from autotm.kernels.tir import Index

# The (steps, features) operand of a contraction, and panels of it: one tile of features, dense, step after step.
#
# In place, the rows of a tile lie a whole row of features apart; at powers of two they evict each other from the
# caches. A panel is read in one stream. Weights of a data gradient are turned on the way.


@dataclass(frozen=True)
class RowMajor:
    """A (steps, features) matrix in place; its panels are copies. `cycles` are estimated, for one vector of a panel."""

    buffer: tirx.Buffer
    steps: int
    features: int
    cycles: float = 4.0

    @property
    def parts(self) -> int:
        """Spans of rows: parts of a panel that can be filled independently."""
        return -(-self.steps // 128)

    def fill(self, part: Index, feature: Index, width: int, target: tirx.Buffer, base: Index, lanes: int) -> tirx.Stmt:
        """Fill one part of the panel of features [feature, feature + width) that starts at `base`: copy its rows."""
        first, last = tir.share(part, self.parts, self.steps)
        source = self.buffer, first * self.features + feature, self.features
        return copy_rows(source, (target, base + first * width, width), last - first, width, lanes)


@dataclass(frozen=True)
class Taps:
    """The taps one phase of a data gradient meets: every `stride`-th from `first`, last one first."""

    first: int
    stride: int
    count: int

    def weight(self, index: Index) -> Index:
        """Return the row or column of the weights that tap `index` uses."""
        return self.first + self.stride * (self.count - 1 - index)


@dataclass(frozen=True)
class Turned:
    """(R,S,C,K) weights as (taps, K) steps by C features."""

    buffer: tirx.Buffer
    shape: tuple[int, int, int, int]
    vertical: Taps
    horizontal: Taps
    cycles: float = 8.0

    @property
    def parts(self) -> int:
        """One for each tap."""
        return self.vertical.count * self.horizontal.count

    @property
    def steps(self) -> int:
        """Taps times the channels of dy."""
        return self.parts * self.shape[3]

    def fill(self, part: Index, feature: Index, width: int, target: tirx.Buffer, base: Index, lanes: int) -> tirx.Stmt:
        """Turn the weights of one tap."""
        _, columns, channels, inner = self.shape
        u, v = part // self.horizontal.count, part % self.horizontal.count
        tap = self.vertical.weight(u) * columns + self.horizontal.weight(v)
        origin = tap * (channels * inner) + feature * inner
        start = base + part * (inner * width)
        return turn_rows((self.buffer, origin, inner), (target, start, width), width, inner, lanes)


Operand = RowMajor | Turned
Place = tuple[tirx.Buffer, Index, int]
"""Buffer, first element, elements from row to row."""


def copy_rows(source: Place, target: Place, rows: Index, columns: int, lanes: int) -> tirx.Stmt:
    """Emit target[i, j] = source[i, j] for i < rows, j < columns."""

    def row(index: Index) -> tirx.Stmt:
        begin, end = source[1] + index * source[2], target[1] + index * target[2]
        pieces = tir.segments(columns, lanes)
        return tir.sequence([tir.store(target[0], end + o, tir.load(source[0], begin + o, n), n) for o, n in pieces])

    return tir.loop(rows, row, "row")


def turn_rows(source: Place, target: Place, rows: int, columns: int, lanes: int) -> tirx.Stmt:
    """Emit target[j, i] = source[i, j], i < rows, j < columns: squares of `lanes` in registers, then smaller ones."""

    def turn(offset: Index, n: int) -> tirx.Stmt:
        """Emit all columns of `n` rows."""
        spans = [(columns // n, n, 0)] if columns >= n else []
        done = columns // n * n
        spans += [(1, m, done + o) for o, m in tir.segments(columns - done, n)]
        squares = []
        for count, m, at in spans:

            def square(index: Index, m: int = m, at: int = at) -> tirx.Stmt:
                k = at + index * m
                origin = source[0], source[1] + offset * source[2] + k, source[2]
                return _turn(origin, (target[0], target[1] + k * target[2] + offset, target[2]), n, m)

            squares.append(tir.loop(count, square, "square"))
        return tir.sequence(squares)

    whole = rows // lanes
    statements = [tir.loop(whole, lambda vector: turn(vector * lanes, lanes), "vector")] if whole else []
    return tir.sequence([*statements, *(turn(whole * lanes + o, n) for o, n in tir.segments(rows % lanes, lanes))])


def _turn(source: Place, target: Place, rows: int, columns: int) -> tirx.Stmt:
    """Emit target[j, i] = source[i, j] for i < rows, j < columns, both powers of two."""
    if rows == columns and rows > 1:
        return _turn_square(source, target, rows)

    def element(i: int, j: int) -> tirx.Stmt:
        return tir.store(target[0], target[1] + j * target[2] + i, tir.load(source[0], source[1] + i * source[2] + j))

    return tir.sequence([element(i, j) for j in range(columns) for i in range(rows)])


def _turn_square(source: Place, target: Place, size: int) -> tirx.Stmt:
    """Turn a square in vector registers: log2(size) rounds that swap the off-diagonal blocks of half the size."""
    statements: list[tirx.Stmt] = []

    def named(value: tirx.Expr) -> tirx.Var:
        # A name, not a buffer: TVM's passes would look at every access.
        vector = tirx.Var("row", f"float32x{size}")
        statements.append(tirx.Bind(vector, value))
        return vector

    rows = [named(tir.load(source[0], source[1] + i * source[2], size)) for i in range(size)]
    distance = size // 2
    while distance:
        upper = [lane if not lane & distance else size + lane - distance for lane in range(size)]
        lower = [lane + distance if not lane & distance else size + lane for lane in range(size)]
        following = []
        for i in range(size):
            first, second = (i, i + distance) if not i & distance else (i - distance, i)
            order = [tirx.IntImm("int32", lane) for lane in (lower if i & distance else upper)]
            following.append(named(tirx.Shuffle([rows[first], rows[second]], order)))
        rows = following
        distance //= 2
    statements += [tir.store(target[0], target[1] + j * target[2], rows[j], size) for j in range(size)]
    return tir.sequence(statements)


# Pixels made ready: a grid with zeros around it.


@dataclass(frozen=True)
class Grid:
    """Pixels (n, i, j) of `channels` each in a flat buffer."""

    buffer: tirx.Buffer
    batch: int
    rows: int
    columns: int
    channels: int

    @classmethod
    def of(cls, buffer: tirx.Buffer) -> Grid:
        """Return a buffer of shape (batch, rows, columns, channels)."""
        return cls(buffer, *tir.extents(buffer))

    @property
    def row(self) -> int:
        """Elements from one row to the next."""
        return self.columns * self.channels

    @property
    def image(self) -> int:
        """Elements from one image to the next."""
        return self.rows * self.row


@dataclass(frozen=True)
class Padding:
    """A grid with zero pixels around it (negative padding cuts pixels off), whole or some of its lines."""

    grid: Grid
    sides: tuple[int, int, int, int]
    """(top, left, bottom, right)."""

    def within(self, buffer: tirx.Buffer) -> Grid:
        """Return the padded grid, if it lay in `buffer`."""
        (top, left, bottom, right), grid = self.sides, self.grid
        return Grid(buffer, grid.batch, grid.rows + top + bottom, grid.columns + left + right, grid.channels)

    def whole(self, name: str, lanes: int) -> tuple[Grid, tirx.Stmt]:
        """Return all of it, and the code that fills it."""
        shape = self.within(self.grid.buffer)
        target = self.within(tir.workspace(shape.batch * shape.image, name))
        code = tir.parallel(
            target.batch * target.rows, lambda index: self.line(index, target, index * target.row, lanes), "line"
        )
        return target, code

    def line(self, index: Index, target: Grid, to: Index, lanes: int) -> tirx.Stmt:
        """Fill line `index`, counted over all images, at `to` of the target's buffer."""
        (top, left, bottom, right), grid = self.sides, self.grid
        kept = grid.columns + min(left, 0) + min(right, 0)
        image, row = index // target.rows, index % target.rows
        origin = image * grid.image + (row - top) * grid.row + max(-left, 0) * grid.channels
        inside = tirx.all(row >= top, row < top + grid.rows) if top > 0 or bottom > 0 else True
        before, between, after = (pixels * grid.channels for pixels in (max(left, 0), kept, max(right, 0)))
        filled = tir.sequence(
            [
                fill(target.buffer, to, before, lanes),
                copy(grid.buffer, origin, target.buffer, to + before, between, lanes),
                fill(target.buffer, to + before + between, after, lanes),
            ]
        )
        return tir.choose(inside, filled, fill(target.buffer, to, target.row, lanes))


def fill(buffer: tirx.Buffer, start: Index, count: int, lanes: int) -> tirx.Stmt:
    """Emit zeros."""
    return tir.spans(count, lanes, lambda at, width: tir.store(buffer, start + at, tir.zeros(width), width))


def copy(source: tirx.Buffer, origin: Index, target: tirx.Buffer, start: Index, count: int, lanes: int) -> tirx.Stmt:
    """Emit a copy of `count` elements from one flat place to another."""
    return tir.spans(
        count, lanes, lambda at, width: tir.store(target, start + at, tir.load(source, origin + at, width), width)
    )


# One register tile: a few scalars of one operand times a few vectors of the other, summed in vector registers.


class RegisterTile:
    """`rows` x `width` sums; every access is unrolled, so that each vector of sums gets a register of its own."""

    def __init__(self, rows: int, width: int, lanes: int) -> None:
        self.rows, self.width, self.lanes = rows, width, lanes
        self.vectors = tir.segments(width, lanes)
        self.sums = tir.Registers(rows, width)

    def start(self) -> tirx.Stmt:
        """Reserve the sums, and set every one to zero."""
        return tir.sequence([self.sums.declare(), self.clear()])

    def clear(self) -> tirx.Stmt:
        """Set every sum to zero."""
        return self._each(lambda m, o, n: self.sums.set(m, o, tir.zeros(n), n))

    def multiply(self, scalar: Callable[[int], tirx.Expr], vector: Callable[[int, int], tirx.Expr]) -> tirx.Stmt:
        """Add scalar(row) * vector(offset, lanes) to every sum."""
        return self.add(lambda m, o, n: tir.splat(scalar(m), n) * vector(o, n))

    def add(self, term: Callable[[int, int, int], tirx.Expr]) -> tirx.Stmt:
        """Add term(row, offset, lanes) to every sum."""
        return self._each(lambda m, o, n: self.sums.set(m, o, self.sums.get(m, o, n) + term(m, o, n), n))

    def save(self, buffer: tirx.Buffer, place: Callable[[int, int], Index]) -> tirx.Stmt:
        """Store the sums at flat place(row, offset) of a buffer."""
        return self._each(lambda m, o, n: tir.store(buffer, place(m, o), self.sums.get(m, o, n), n))

    def finish(
        self,
        problem: Problem,
        coordinates: Callable[[int, Index], tuple[Index, ...]],
        position: Callable[[int, Index], Index] | None = None,
    ) -> tirx.Stmt:
        """Store the epilogue's outputs at coordinates(row, offset), row-major at position(row, offset)."""

        def vector(m: int, offset: int, lanes: int) -> tirx.Stmt:
            def lane(number: Index) -> tirx.Stmt:
                at = offset + number
                known = position(m, at) if position is not None else None
                return problem.finish(coordinates(m, at), lambda: self.sums.get(m, at), known)

            return tir.vector(lanes, lane)

        return self._each(vector)

    def _each(self, statement: Callable[[int, int, int], tirx.Stmt]) -> tirx.Stmt:
        return tir.sequence([statement(m, o, n) for m in range(self.rows) for o, n in self.vectors])


# Sums that wait in memory: a reduction taken in blocks, each of which adds to what those before it left.
#
# They wait in the result itself where that is the only output, else in a workspace: for the whole result, or for a
# portion of it at a time, which reads the operands once for each portion.


@dataclass(frozen=True)
class Block:
    """A block of pixel rows [first, last), and where its sums go: into `partial` until the last block."""

    first: Index
    last: Index
    partial: tirx.Buffer | None
    base: Index
    is_first: tirx.Expr | bool
    is_last: tirx.Expr | bool


def pixel_blocks(lines: int, columns: int, line_bytes: int, info: TargetInfo) -> int:
    """Return the blocks of pixel rows: each fits half the second-level cache and makes no long chain of sums."""
    cache_blocks = -(-2 * lines * line_bytes // info.l2_bytes)
    chain_blocks = -(-lines * columns // CHAIN_STEPS)
    return min(lines, max(cache_blocks, chain_blocks))


def each_block(blocks: int, lines: int, partial: tirx.Buffer | None, body: Callable[[Block], tirx.Stmt]) -> tirx.Stmt:
    """Emit a loop over the blocks of all pixel rows."""
    return tir.loop(
        blocks,
        lambda index: body(Block(*tir.share(index, blocks, lines), partial, 0, index == 0, index == blocks - 1)),
        "block",
    )


def partial_sums(problem: Problem, size: int, blocks: int) -> tuple[tirx.Buffer | None, tuple[tirx.Buffer, ...]]:
    """Return where sums wait between blocks, and the workspace this needs: none if the product is the output."""
    if blocks == 1:
        return None, ()
    if problem.plain:
        return problem.product, ()
    buffer = tir.workspace(size, "partial_sums")
    return buffer, (buffer,)


def by_portions(
    tasks: int,
    units: int,
    unit_size: int,
    pixel_blocks: tuple[int, int],
    info: TargetInfo,
    body: Callable[[Block, Index, Index, Index], tirx.Stmt],
) -> tuple[tirx.Stmt, tirx.Buffer]:
    """Share the result's units of `unit_size` sums among tasks; each holds the sums of a portion of its own at a time.

    The sums of a portion take no more than a quarter of the second-level cache; pixels are read once for each.
    `pixel_blocks` are how many there are, and the pixel rows of all. `body(block, first, last, task)` adds the products
    of a block to the sums of units [first, last), which lie one after the other from the block's `base` on.

    Returns the code, and the workspace that holds the sums.
    """
    most = -(-units // tasks)
    size = min(most, max(1, info.l2_bytes // 4 // (4 * unit_size)))
    partial = tir.workspace(tasks * size * unit_size, "partial_sums")

    def task(index: Index) -> tirx.Stmt:
        first, last = tir.share(index, tasks, units)

        def portion(number: Index) -> tirx.Stmt:
            begin = first + number * size
            return tir.bind_all((begin, tirx.min(tir.number(begin + size), tir.number(last))), "begin end", blocks)

        def blocks(begin: Index, end: Index) -> tirx.Stmt:
            def block(span: Block) -> tirx.Stmt:
                return body(replace(span, base=index * (size * unit_size)), begin, end, index)

            return each_block(*pixel_blocks, partial, block)

        return tir.loop(-(-most // size), portion, "portion")

    return tir.parallel(tasks, task, "task"), partial


def pick_features(
    cut: Cut, tile: Index, features: int, lanes: int, body: Callable[[Index, int], tirx.Stmt]
) -> tirx.Stmt:
    """Emit the body for feature tile `tile`, given its first feature and its width, a constant in each branch."""
    whole = tir.pick(cut, tile, lambda k, size: body(k * lanes, size * lanes)) if features >= lanes else None
    tail = features % lanes
    if not tail:
        return whole
    size = cut.size if cut.longer == cut.count else cut.size - 1
    end = body(features - (size - 1) * lanes - tail, (size - 1) * lanes + tail)
    return end if cut.count == 1 else tir.choose(tile == cut.count - 1, end, whole)


def sum_block(
    tile: RegisterTile,
    block: Block,
    problem: Problem,
    reduce: tirx.Stmt,
    place: Callable[[int, int], Index],
    coordinates: Callable[[int, Index], tuple[Index, ...]],
    waiting: Callable[[int, int], Index] | None = None,
) -> tirx.Stmt:
    """Emit the sums of one block in registers, then added to those before it; the last block runs the epilogue.

    Sums lie at `place` of the result, and wait at `waiting` of the partial sums, the same place if not given.
    """
    waits = waiting or place
    nothing = tir.sequence([])
    gather = save = nothing
    if block.partial is not None:
        gather = tile.add(lambda m, o, n: tir.load(block.partial, block.base + waits(m, o), n))
        save = tile.save(block.partial, lambda m, o: block.base + waits(m, o))
    return tir.sequence(
        [
            tile.start(),
            reduce,
            tir.choose(block.is_first, nothing, gather),
            tir.choose(block.is_last, tile.finish(problem, coordinates, place), save),
        ]
    )


def sum_chains(
    tile: RegisterTile, taps: int, run: int, chain: Callable[[Index, Index, Index], tirx.Stmt]
) -> tuple[list[tirx.Stmt], RegisterTile]:
    """Return all products of `taps` runs, and the tile that holds their sum in the end.

    `chain(tap, first, last)` adds steps [first, last) of a run to `tile`. Where there are many, chains of about
    `CHAIN_STEPS` are added to a second tile one by one.
    """
    if taps * run <= 2 * CHAIN_STEPS:
        whole = [tir.loop(taps, lambda tap: chain(tap, 0, run), "tap")] if taps * run else []
        return [tile.start(), *whole], tile
    total = RegisterTile(tile.rows, tile.width, tile.lanes)
    links = -(-run // CHAIN_STEPS)

    def link(tap: Index, index: Index) -> tirx.Stmt:
        return tir.sequence([tile.clear(), chain(tap, *tir.share(index, links, run)), total.add(tile.sums.get)])

    each = tir.loop(taps, lambda tap: tir.loop(links, lambda index: link(tap, index), "link"), "tap")
    return [tile.sums.declare(), total.start(), each], total
