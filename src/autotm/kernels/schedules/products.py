"""Matrix products with code of their own: batched, with few rows, and A Bᵀ with long rows."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass

from tvm import tirx
from tvm.ir.expr import TensorLoad

from autotm.kernels import tir
from autotm.kernels.schedules.panels import (
    Block,
    Place,
    RegisterTile,
    copy_rows,
    each_block,
    partial_sums,
    pick_features,
    sum_block,
    sum_chains,
    turn_rows,
)
from autotm.kernels.schedules.problem import Problem
from autotm.kernels.target import CHAIN_STEPS, TargetInfo, cut, register_tiles
from autotm.kernels.tir import Code, Index

# Batched products of matrices: the generated loops.
#
#     result[b, m, n] = sum over k of scalars[b, m, k] * vectors[b, k, n]
#
# b, m, n and k stand for axes anywhere in their operand: only strides matter. The operand that holds the result's last
# axis is read as vectors along it. Where that axis is not contiguous, or its rows lie so far apart that they evict each
# other from the caches, a panel of it is copied (turned on the way) for each tile of columns.

_UNITS_PER_THREAD = 4
"""Work is cut at least so fine that threads finish together."""
_FAR_BYTES = 1024
"""Rows a multiple of this apart share few sets of the first-level cache."""


@dataclass(frozen=True)
class _Axis:
    """An axis of the product: its extent, and how far apart its neighbours lie in both operands."""

    extent: int
    scalars: int
    vectors: int


@dataclass(frozen=True)
class _Product:
    """The operands by their part in the loops."""

    scalars: tirx.Buffer
    vectors: tirx.Buffer
    axes: tuple[_Axis, ...]
    """Axes of the result, in its order; the last one is n."""
    row: int
    """Which of `axes` is m."""
    k: _Axis

    @classmethod
    def of(cls, problem: Problem) -> _Product:
        def strides(load: TensorLoad) -> tuple[int, ...]:
            pitches = itertools.accumulate(map(int, reversed(load.source.shape)), operator.mul, initial=1)
            apart = list(zip(reversed(load.indices), pitches, strict=False))
            return tuple(next((pitch for index, pitch in apart if index.same_as(axis)), 0) for axis in problem.axes)

        left, right = map(strides, problem.factors)
        extents = (*problem.shape, problem.steps)
        last = len(problem.shape) - 1
        swapped = left[last] > right[last]
        scalar, vector = (right, left) if swapped else (left, right)
        axes = [_Axis(*item) for item in zip(extents, scalar, vector, strict=True)]
        alone = [index for index in range(last) if axes[index].scalars and not axes[index].vectors]
        if not alone or axes[last].scalars or not all(axis.scalars and axis.vectors for axis in axes[last + 1 :]):
            raise ValueError("no batched product of matrices")
        scalars, vectors = (problem.right, problem.left) if swapped else (problem.left, problem.right)
        return cls(scalars, vectors, tuple(axes[: last + 1]), alone[-1], axes[-1])

    @property
    def m(self) -> _Axis:
        return self.axes[self.row]

    @property
    def n(self) -> _Axis:
        return self.axes[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """Positions of the axes that both operands or neither tile has."""
        return tuple(index for index in range(len(self.axes) - 1) if index != self.row)

    def fill(self, origin: Index, panel: Place, lanes: int) -> tirx.Stmt:
        """Copy the vectors from `origin` on, for all steps, into a panel; turn them where they lie along the steps."""
        width = panel[2]
        if self.n.vectors != 1:
            return turn_rows((self.vectors, origin, self.n.vectors), panel, width, self.k.extent, lanes)
        return copy_rows((self.vectors, origin, self.k.vectors), panel, self.k.extent, width, lanes)

    def tile(
        self, problem: Problem, registers: RegisterTile, place: dict[int, Index], scalars: Index, vectors: Place
    ) -> tirx.Stmt:
        """Emit a register tile of the result at `place`, from operands that begin at `scalars` and at `vectors`."""
        (buffer, origin, pitch), last = vectors, len(self.axes) - 1

        def step(k: Index) -> tirx.Stmt:
            at = scalars + k * self.k.scalars
            return registers.multiply(
                lambda i: tir.load(self.scalars, at + i * self.m.scalars),
                lambda o, lanes: tir.load(buffer, origin + k * pitch + o, lanes),
            )

        def coordinates(i: int, offset: Index) -> tuple[Index, ...]:
            own = {**place, self.row: place[self.row] + i, last: place[last] + offset}
            return tuple(own[index] for index in range(last + 1))

        def chain(_: Index, first: Index, last: Index) -> tirx.Stmt:
            return tir.loop(last - first, step, "step", start=first)

        code, total = sum_chains(registers, 1, self.k.extent, chain)
        return tir.sequence([*code, total.finish(problem, coordinates)])


def batched_product(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit code in which the threads share the batch, and the rows of each product where the batch is small."""
    product, lanes = _Product.of(problem), info.lanes
    tiles = register_tiles(1, product.m.extent, product.n.extent, product.k.extent, info)
    heights = tiles.columns
    products = math.prod(product.axes[index].extent for index in product.batch)
    blocks = min(heights.count, -(-_UNITS_PER_THREAD * threads // products)) if threads > 1 else 1
    tasks = min(threads, products * blocks)
    is_far = 4 * product.k.vectors % _FAR_BYTES == 0
    in_place = product.n.vectors == 1 and (not is_far or heights.count // blocks <= 1)
    panel_size = product.k.extent * tiles.vectors.size * lanes
    panels = tir.workspace(panel_size * tasks, "panels")

    def unit(number: Index, task: Index) -> tirx.Stmt:
        """Emit one block of rows of one product."""
        block, rest = number % blocks, number // blocks
        batch: dict[int, Index] = {}
        for index in reversed(product.batch):
            extent = product.axes[index].extent
            batch[index], rest = rest % extent, rest // extent
        origins = [
            sum((at * getattr(product.axes[index], name) for index, at in batch.items()), tir.number(0))
            for name in ("scalars", "vectors")
        ]

        def named(scalars: Index, vectors: Index, first: Index, last: Index, *at: Index) -> tirx.Stmt:
            where, panel = dict(zip(batch, at, strict=True)), task * panel_size

            def columns(n: Index, width: int) -> tirx.Stmt:
                def bound(m: Index, height: int) -> tirx.Stmt:
                    def tile(m: Index, n: Index, at: Index) -> tirx.Stmt:
                        source = (product.vectors, vectors + n, product.k.vectors) if in_place else own
                        place = {**where, product.row: m, len(product.axes) - 1: n}
                        return product.tile(problem, RegisterTile(height, width, lanes), place, at, source)

                    return tir.bind_all((m, n, scalars + m * product.m.scalars), "row column origin", tile)

                own = panels, panel, width
                rows = tir.loop(last - first, lambda row: tir.pick(heights, row, bound), "rows", start=first)
                before = [] if in_place else [product.fill(vectors + n * product.n.vectors, own, lanes)]
                return tir.sequence([*before, rows])

            def column(index: Index) -> tirx.Stmt:
                return pick_features(tiles.vectors, index, product.n.extent, lanes, columns)

            return tir.loop(tiles.vectors.count, column, "columns")

        names = "scalars vectors first last " + " ".join(f"batch{index}" for index in batch)
        return tir.bind_all((*origins, *tir.share(block, blocks, heights.count), *batch.values()), names, named)

    body = tir.in_tasks(tasks, products * blocks, unit, "unit")
    return Code(body, () if in_place else (panels,))


# Products of a few rows with a large matrix: bound by reading the matrix once, in the order it lies in memory.
#
# A B with few rows of A: B is read in blocks of rows, each from left to right; the sums of a block are added to those
# before it in a buffer that stays in the cache. A Bᵀ: each result is the dot product of two rows, summed lane by lane.

FEW_ROWS = 24
"""With at most so many rows the large matrix is used too few times to be worth a copy."""
_BLOCK_STEPS = 32
"""Rows of B in a block: as many streams as prefetchers follow."""
_ROWS = 8  # Rows of A in a tile, at most.


def few_rows_product(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit A B; threads share the columns of B."""
    (rows, features), steps = problem.shape, int(problem.left.shape[1])
    heights = cut(rows, _ROWS)
    vectors = cut(-(-features // info.lanes), (info.registers - 1) // heights.size - 1)
    blocks = -(-steps // _BLOCK_STEPS)
    partial, workspaces = partial_sums(problem, rows * features, blocks)
    tasks = min(threads, vectors.count)

    def tile(block: Block, m: Index, k: Index, size: tuple[int, int]) -> tirx.Stmt:
        registers = RegisterTile(*size, info.lanes)

        def step(q: Index) -> tirx.Stmt:
            return registers.multiply(
                lambda row: tir.load(problem.left, (m + row) * steps + q),
                lambda o, n: tir.load(problem.right, q * features + k + o, n),
            )

        reduce = tir.loop(block.last - block.first, step, "step", start=block.first)
        return _sum_rows(registers, block, problem, reduce, m, k)

    def columns(block: Block, vector: Index) -> tirx.Stmt:
        def breadth(k: Index, width: int) -> tirx.Stmt:
            def height(index: Index) -> tirx.Stmt:
                return tir.pick(heights, index, lambda m, count: tile(block, m, k, (count, width)))

            return tir.loop(heights.count, height, "rows")

        return pick_features(vectors, vector, features, info.lanes, breadth)

    def task(index: Index) -> tirx.Stmt:
        first, last = tir.share(index, tasks, vectors.count)

        def block(span: Block) -> tirx.Stmt:
            return tir.loop(last - first, lambda vector: columns(span, vector), "columns", start=first)

        return each_block(blocks, steps, partial, block)

    return Code(tir.parallel(tasks, task, "task"), workspaces)


def few_rows_product_nt(problem: Problem, info: TargetInfo) -> Code:
    """Emit A Bᵀ; threads share the rows of B."""
    rows, features = problem.shape
    heights = cut(rows, _ROWS)
    widths = cut(features, max(1, (info.registers - 1) // heights.size - 1))

    def task(index: Index) -> tirx.Stmt:
        def width(k: Index, breadth: int) -> tirx.Stmt:
            def height(number: Index) -> tirx.Stmt:
                return tir.pick(
                    heights, number, lambda m, count: _dot_products(problem, info.lanes, (m, k), (count, breadth))
                )

            return tir.loop(heights.count, height, "rows")

        return tir.pick(widths, index, width)

    return Code(tir.parallel(widths.count, task, "task"), ())


def _dot_products(problem: Problem, lanes: int, where: tuple[Index, Index], size: tuple[int, int]) -> tirx.Stmt:
    """Emit the dot products of `size[0]` rows of A with `size[1]` rows of B, from rows `where` on."""
    (m, k), steps = where, int(problem.left.shape[1])
    spots = [(i, j) for i in range(size[0]) for j in range(size[1])]
    sums = tir.Registers(size[0], size[1] * lanes)

    def multiply(at: Index, width: int) -> tirx.Stmt:
        updates = []
        for i, j in spots:
            left = tir.load(problem.left, (m + i) * steps + at, width)
            right = tir.load(problem.right, (k + j) * steps + at, width)
            updates.append(sums.set(i, j * lanes, sums.get(i, j * lanes, width) + left * right, width))
        return tir.sequence(updates)

    whole = steps // lanes
    statements = [sums.declare(), *(sums.set(i, j * lanes, tir.zeros(lanes), lanes) for i, j in spots)]
    statements += [tir.loop(whole, lambda v: multiply(v * lanes, lanes), "step")] if whole else []
    statements += [multiply(whole * lanes + at, width) for at, width in tir.segments(steps % lanes, lanes)]
    width = lanes // 2
    while width:  # Add the upper half of the lanes to the lower one until one is left.
        for i, j in spots:
            low, high = (sums.get(i, j * lanes + o, width) for o in (0, width))
            statements.append(sums.set(i, j * lanes, low + high, width))
        width //= 2

    def finish(i: int, j: int) -> tirx.Stmt:
        return problem.finish((m + i, k + j), lambda: sums.get(i, j * lanes))

    return tir.sequence([*statements, *(finish(i, j) for i, j in spots)])


# A Bᵀ with long rows: taken in blocks of steps, so that a turned block of B stays in the second-level cache.
#
# Turned as a whole, B would be read from memory again for every few rows of A, and need a workspace of its own size.

_LEAST_BLOCKS = 4  # With so many blocks of `CHAIN_STEPS`, B is turned block by block.
_MOST_ROWS = 1024
"""A block of A with more rows is no longer close to the core when the next tile of features reads it."""


def long_product_pays(problem: Problem, info: TargetInfo, threads: int) -> bool:
    """Return whether steps are many, and rows and threads few enough for each thread to have its own features."""
    rows, features = problem.shape
    tiles = register_tiles(1, rows, features, CHAIN_STEPS, info).vectors.count
    steps = int(problem.left.shape[1])
    return steps >= _LEAST_BLOCKS * CHAIN_STEPS and rows <= _MOST_ROWS and tiles >= 2 * threads


def long_product_nt(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Emit A Bᵀ; threads share the features, and the sums of a block are added to those before it."""
    (rows, features), steps = problem.shape, int(problem.left.shape[1])
    tiles = register_tiles(1, rows, features, CHAIN_STEPS, info)
    tasks = min(threads, tiles.vectors.count)
    panel_size = CHAIN_STEPS * tiles.vectors.size * info.lanes
    panels = tir.workspace(panel_size * tasks, "panels")
    whole, rest = divmod(steps, CHAIN_STEPS)
    partial, workspaces = partial_sums(problem, rows * features, whole + (rest > 0))

    def tile(block: Block, length: int, where: tuple[Index, Index], size: tuple[int, int], panel: Index) -> tirx.Stmt:
        registers = RegisterTile(*size, info.lanes)

        def multiply(at: Index) -> tirx.Stmt:
            def step(q: Index) -> tirx.Stmt:
                return registers.multiply(
                    lambda i: tir.load(problem.left, at + q + i * steps),
                    lambda o, n: tir.load(panels, panel + q * size[1] + o, n),
                )

            return tir.loop(length, step, "step")

        summed = tir.bind(where[0] * steps + block.first, multiply, "left")
        return _sum_rows(registers, block, problem, summed, *where)

    def turned(block: Block, length: int, vector: Index, panel: Index) -> tirx.Stmt:
        """Emit the sums of a tile of features, of which a block of B is turned before."""

        def columns(k: Index, width: int) -> tirx.Stmt:
            source = problem.right, k * steps + block.first, steps
            fill = turn_rows(source, (panels, panel, width), width, length, info.lanes)

            def bound(m: Index, height: int) -> tirx.Stmt:
                return tir.bind_all(
                    (m, k), "row feature", lambda *where: tile(block, length, where, (height, width), panel)
                )

            count = tiles.columns.count
            return tir.sequence([fill, tir.loop(count, lambda index: tir.pick(tiles.columns, index, bound), "rows")])

        return pick_features(tiles.vectors, vector, features, info.lanes, columns)

    def task(index: Index) -> tirx.Stmt:
        (low, high), panel = tir.share(index, tasks, tiles.vectors.count), index * panel_size

        def all_features(block: Block, length: int) -> tirx.Stmt:
            return tir.loop(high - low, lambda vector: turned(block, length, vector, panel), "features", start=low)

        def block(number: Index) -> tirx.Stmt:
            first, is_last = number * CHAIN_STEPS, False if rest else number == whole - 1
            return all_features(Block(first, first + CHAIN_STEPS, partial, 0, number == 0, is_last), CHAIN_STEPS)

        end = Block(whole * CHAIN_STEPS, steps, partial, 0, is_first=False, is_last=True)
        return tir.sequence([tir.loop(whole, block, "block"), *([all_features(end, rest)] if rest else [])])

    return Code(tir.parallel(tasks, task, "task"), (panels, *workspaces))


def _sum_rows(
    registers: RegisterTile, block: Block, problem: Problem, reduce: tirx.Stmt, m: Index, k: Index
) -> tirx.Stmt:
    """Emit `sum_block` of rows from `m` on and features from `k` on of a result that is a matrix."""
    features = problem.shape[1]
    return sum_block(
        registers,
        block,
        problem,
        reduce,
        lambda row, o: (m + row) * features + k + o,
        lambda row, o: (m + row, k + o),
    )
