"""Products of a few rows with a large matrix: bound by reading the matrix once, in the order it lies in memory.

A B with few rows of A: B is read in blocks of rows, each from left to right; the sums of a block are added to those
before it in a buffer that stays in the cache. A Bᵀ: each result is the dot product of two rows, summed lane by lane.
"""

from __future__ import annotations

from tvm import tirx

from autotm.kernels.code import Code, Index, TargetInfo, cut, tir
from autotm.kernels.schedules.contraction.parts import (
    Block,
    Problem,
    RegisterTile,
    each_block,
    partial_sums,
    pick_features,
    sum_block,
)

FEW_ROWS = 24
"""Up to here the large matrix is used too few times to be worth a copy."""
_BLOCK_STEPS = 32
"""Rows of B in a block: as many streams as prefetchers follow."""
_ROWS = 8


def few_rows_product(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """A B; threads share the columns of B."""
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
        return sum_block(
            registers,
            block,
            problem,
            reduce,
            lambda row, o: (m + row) * features + k + o,
            lambda row, o: (m + row, k + o),
        )

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

    return Code(tir.loop(tasks, task, "task", tirx.ForKind.PARALLEL), workspaces)


def few_rows_product_nt(problem: Problem, info: TargetInfo) -> Code:
    """A Bᵀ; threads share the rows of B."""
    (rows, features), steps = problem.shape, int(problem.left.shape[1])
    heights = cut(rows, _ROWS)
    widths = cut(features, max(1, (info.registers - 1) // heights.size - 1))

    def tile(m: Index, k: Index, size: tuple[int, int]) -> tirx.Stmt:
        dots = _Dots(problem, info, size, steps)
        return dots.code(m, k)

    def task(index: Index) -> tirx.Stmt:
        def width(k: Index, breadth: int) -> tirx.Stmt:
            def height(number: Index) -> tirx.Stmt:
                return tir.pick(heights, number, lambda m, count: tile(m, k, (count, breadth)))

            return tir.loop(heights.count, height, "rows")

        return tir.pick(widths, index, width)

    return Code(tir.loop(widths.count, task, "task", tirx.ForKind.PARALLEL), ())


class _Dots:
    """Dot products of `size[0]` rows of A with `size[1]` rows of B."""

    def __init__(self, problem: Problem, info: TargetInfo, size: tuple[int, int], steps: int) -> None:
        self.problem, self.lanes, self.size, self.steps = problem, info.lanes, size, steps
        self.sums = tir.Registers(size[0], size[1] * info.lanes)

    def code(self, m: Index, k: Index) -> tirx.Stmt:
        lanes, whole = self.lanes, self.steps // self.lanes
        clear = [self.sums.set(i, j * lanes, tir.zeros(lanes), lanes) for i, j in self._each()]
        statements = [self.sums.declare(), *clear]
        if whole:
            statements.append(tir.loop(whole, lambda v: self._multiply(m, k, v * lanes, lanes), "step"))
        tail = tir.segments(self.steps - whole * lanes, lanes)
        statements += [self._multiply(m, k, whole * lanes + offset, width) for offset, width in tail]
        statements += self._fold()

        def finish(i: int, j: int) -> tirx.Stmt:
            return self.problem.finish((m + i, k + j), lambda: self.sums.get(i, j * lanes))

        return tir.sequence([*statements, *(finish(i, j) for i, j in self._each())])

    def _each(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.size[0]) for j in range(self.size[1])]

    def _multiply(self, m: Index, k: Index, at: Index, lanes: int) -> tirx.Stmt:
        updates = []
        for i, j in self._each():
            left = tir.load(self.problem.left, (m + i) * self.steps + at, lanes)
            right = tir.load(self.problem.right, (k + j) * self.steps + at, lanes)
            place = j * self.lanes
            updates.append(self.sums.set(i, place, self.sums.get(i, place, lanes) + left * right, lanes))
        return tir.sequence(updates)

    def _fold(self) -> list[tirx.Stmt]:
        """Add the upper half of the lanes to the lower one until one is left."""
        folds, width = [], self.lanes // 2
        while width:
            for i, j in self._each():
                low, high = (self.sums.get(i, j * self.lanes + o, width) for o in (0, width))
                folds.append(self.sums.set(i, j * self.lanes, low + high, width))
            width //= 2
        return folds
