"""A Bᵀ with long rows: taken in blocks of steps, so that a turned block of B stays in the second-level cache.

Turned as a whole, B would be read from memory again for every few rows of A, and need a workspace of its own size.
"""

from __future__ import annotations

from tvm import tirx

from autotm.kernels.code import CHAIN_STEPS, Code, Index, TargetInfo, register_tiles, tir
from autotm.kernels.schedules.contraction.parts import (
    Block,
    Problem,
    RegisterTile,
    partial_sums,
    pick_features,
    sum_block,
    turn_rows,
)

_LEAST_BLOCKS = 4
_MOST_ROWS = 1024
"""Above, a block of A is no longer close to the core when the next tile of features reads it."""


def long_product_pays(problem: Problem, info: TargetInfo, threads: int) -> bool:
    """Whether there are many steps, and few enough rows and threads for each thread to have features of its own."""
    rows, features = problem.shape
    tiles = register_tiles(1, rows, features, CHAIN_STEPS, info).vectors.count
    steps = int(problem.left.shape[1])
    return steps >= _LEAST_BLOCKS * CHAIN_STEPS and rows <= _MOST_ROWS and tiles >= 2 * threads


def long_product_nt(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Threads share the features; the sums of a block are added to those before it."""
    return _Emitter(problem, info, threads).code()


class _Emitter:
    def __init__(self, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.problem, self.info = problem, info
        self.rows, self.features = problem.shape
        self.steps = int(problem.left.shape[1])
        self.tiles = register_tiles(1, self.rows, self.features, CHAIN_STEPS, info)
        self.tasks = min(threads, self.tiles.vectors.count)
        self.panel_size = CHAIN_STEPS * self.tiles.vectors.size * info.lanes
        self.panels = tir.workspace(self.panel_size * self.tasks, "panels")

    def code(self) -> Code:
        whole, rest = divmod(self.steps, CHAIN_STEPS)
        partial, workspaces = partial_sums(self.problem, self.rows * self.features, whole + (rest > 0))

        def task(index: Index) -> tirx.Stmt:
            tiles, panel = tir.share(index, self.tasks, self.tiles.vectors.count), index * self.panel_size

            def block(number: Index) -> tirx.Stmt:
                first, is_last = number * CHAIN_STEPS, False if rest else number == whole - 1
                return self._block(
                    Block(first, first + CHAIN_STEPS, partial, 0, number == 0, is_last), CHAIN_STEPS, tiles, panel
                )

            statements = [tir.loop(whole, block, "block")]
            if rest:
                end = Block(whole * CHAIN_STEPS, self.steps, partial, 0, is_first=False, is_last=True)
                statements.append(self._block(end, rest, tiles, panel))
            return tir.sequence(statements)

        return Code(tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL), (self.panels, *workspaces))

    def _block(self, block: Block, steps: int, tiles: tuple[Index, Index], panel: Index) -> tirx.Stmt:
        heights = self.tiles.columns

        def columns(k: Index, width: int) -> tirx.Stmt:
            source = self.problem.right, k * self.steps + block.first, self.steps
            fill = turn_rows(source, (self.panels, panel, width), width, steps, self.info.lanes)

            def row(index: Index) -> tirx.Stmt:
                return tir.pick(
                    heights,
                    index,
                    lambda m, height: tir.bind_all(
                        (m, k), "row feature", lambda m, k: self._tile(block, steps, (m, k), (height, width), panel)
                    ),
                )

            return tir.sequence([fill, tir.loop(heights.count, row, "rows")])

        def tile(vector: Index) -> tirx.Stmt:
            return pick_features(self.tiles.vectors, vector, self.features, self.info.lanes, columns)

        return tir.loop(tiles[1] - tiles[0], tile, "features", start=tiles[0])

    def _tile(
        self, block: Block, steps: int, where: tuple[Index, Index], size: tuple[int, int], panel: Index
    ) -> tirx.Stmt:
        (m, k), width = where, size[1]
        tile = RegisterTile(*size, self.info.lanes)

        def multiply(at: Index) -> tirx.Stmt:
            def step(q: Index) -> tirx.Stmt:
                return tile.multiply(
                    lambda i: tir.load(self.problem.left, at + q + i * self.steps),
                    lambda o, n: tir.load(self.panels, panel + q * width + o, n),
                )

            return tir.loop(steps, step, "step")

        return sum_block(
            tile,
            block,
            self.problem,
            tir.bind(m * self.steps + block.first, multiply, "left"),
            lambda i, o: (m + i) * self.features + k + o,
            lambda i, o: (m + i, k + o),
        )
