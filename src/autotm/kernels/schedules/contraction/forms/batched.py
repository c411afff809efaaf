"""Batched products of matrices: the generated loops.

    result[b, m, n] = sum over k of scalars[b, m, k] * vectors[b, k, n]

b, m, n and k stand for axes anywhere in their operand: only strides matter. The operand that holds the result's last
axis is read as vectors along it. Where that axis is not contiguous, or its rows lie so far apart that they evict each
other from the caches, a panel of it is copied (turned on the way) for each tile of columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.ir.expr import TensorLoad

from autotm.kernels.code import Code, Index, TargetInfo, register_tiles, tir
from autotm.kernels.schedules.contraction.parts import (
    Problem,
    RegisterTile,
    copy_rows,
    pick_features,
    sum_chains,
    turn_rows,
)

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
    """Of the result, in its order; the last one is n."""
    row: int
    """Which of `axes` is m."""
    k: _Axis

    @classmethod
    def of(cls, problem: Problem) -> _Product:
        left, right = (_strides(load, problem.axes) for load in problem.factors)
        extents = (*problem.shape, problem.steps)
        last = len(problem.shape) - 1
        swapped = left[last] > right[last]
        scalar, vector = (right, left) if swapped else (left, right)
        axes = [_Axis(*item) for item in zip(extents, scalar, vector, strict=True)]
        alone = [index for index in range(last) if axes[index].scalars and not axes[index].vectors]
        if not alone or axes[last].scalars or not all(axis.scalars and axis.vectors for axis in axes[last + 1 :]):
            message = "no batched product of matrices"
            raise ValueError(message)
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


def _strides(load: TensorLoad, axes: tuple[tirx.Var, ...]) -> tuple[int, ...]:
    found, pitch = [], 1
    for index, extent in zip(reversed(load.indices), reversed(load.source.shape), strict=True):
        found.append((index, pitch))
        pitch *= int(extent)
    return tuple(next((pitch for index, pitch in found if index.same_as(axis)), 0) for axis in axes)


def batched_product(problem: Problem, info: TargetInfo, threads: int) -> Code:
    """Threads share the batch, and the rows of each product where the batch is small."""
    return _Emitter(problem, info, threads).code()


class _Emitter:
    def __init__(self, problem: Problem, info: TargetInfo, threads: int) -> None:
        self.problem, self.info = problem, info
        self.product = product = _Product.of(problem)
        self.tiles = register_tiles(1, product.m.extent, product.n.extent, product.k.extent, info)
        rows = self.tiles.columns.count
        batch = math.prod(product.axes[index].extent for index in product.batch)
        self.blocks = min(rows, -(-_UNITS_PER_THREAD * threads // batch)) if threads > 1 else 1
        self.units = batch * self.blocks
        self.tasks = min(threads, self.units)
        is_far = 4 * product.k.vectors % _FAR_BYTES == 0
        self.in_place = product.n.vectors == 1 and (not is_far or rows // self.blocks <= 1)
        self.panel_size = product.k.extent * self.tiles.vectors.size * info.lanes
        self.panels = tir.workspace(self.panel_size * self.tasks, "panels")

    def code(self) -> Code:
        def task(index: Index) -> tirx.Stmt:
            first, last = tir.share(index, self.tasks, self.units)
            panel = index * self.panel_size
            return tir.loop(last - first, lambda unit: self._unit(unit, panel), "unit", start=first)

        body = tir.loop(self.tasks, task, "task", tirx.ForKind.PARALLEL)
        return Code(body, () if self.in_place else (self.panels,))

    def _unit(self, unit: Index, panel: Index) -> tirx.Stmt:
        """One block of rows of one product."""
        product = self.product
        block, rest = unit % self.blocks, unit // self.blocks
        batch: dict[int, Index] = {}
        for index in reversed(product.batch):
            extent = product.axes[index].extent
            batch[index], rest = rest % extent, rest // extent
        origins = [
            sum((at * getattr(product.axes[index], name) for index, at in batch.items()), tir.number(0))
            for name in ("scalars", "vectors")
        ]
        rows = tir.share(block, self.blocks, self.tiles.columns.count)

        def named(scalars: Index, vectors: Index, first: Index, last: Index, *at: Index) -> tirx.Stmt:
            where = dict(zip(batch, at, strict=True))
            return tir.loop(
                self.tiles.vectors.count,
                lambda tile: self._columns(tile, (scalars, vectors), (first, last), where, panel),
                "columns",
            )

        names = "scalars vectors first last " + " ".join(f"batch{index}" for index in batch)
        return tir.bind_all((*origins, *rows, *batch.values()), names, named)

    def _columns(
        self,
        tile: Index,
        origins: tuple[Index, Index],
        rows: tuple[Index, Index],
        batch: dict[int, Index],
        panel: Index,
    ) -> tirx.Stmt:
        product, (scalars, vectors), (first, last) = self.product, origins, rows

        def columns(n: Index, width: int) -> tirx.Stmt:
            def row(index: Index) -> tirx.Stmt:
                return tir.pick(
                    self.tiles.columns,
                    index,
                    lambda m, height: tir.bind_all(
                        (m, n, scalars + m * product.m.scalars),
                        "row column origin",
                        lambda m, n, at: self._tile((m, n), (height, width), at, source(n), batch),
                    ),
                )

            def source(n: Index) -> tuple[tirx.Buffer, Index, int]:
                if self.in_place:
                    return product.vectors, vectors + n, product.k.vectors
                return self.panels, panel, width

            fill = [] if self.in_place else [self._fill(vectors + n * product.n.vectors, width, panel)]
            return tir.sequence([*fill, tir.loop(last - first, row, "rows", start=first)])

        return pick_features(self.tiles.vectors, tile, product.n.extent, self.info.lanes, columns)

    def _fill(self, origin: Index, width: int, panel: Index) -> tirx.Stmt:
        product, lanes, target = self.product, self.info.lanes, (self.panels, panel, width)
        if product.n.vectors != 1:
            source = product.vectors, origin, product.n.vectors
            return turn_rows(source, target, width, product.k.extent, lanes)
        return copy_rows((product.vectors, origin, product.k.vectors), target, product.k.extent, width, lanes)

    def _tile(
        self,
        where: tuple[Index, Index],
        size: tuple[int, int],
        scalars: Index,
        vectors: tuple[tirx.Buffer, Index, int],
        batch: dict[int, Index],
    ) -> tirx.Stmt:
        product, (m, n), (buffer, origin, pitch) = self.product, where, vectors
        tile = RegisterTile(*size, self.info.lanes)

        def step(k: Index) -> tirx.Stmt:
            at = scalars + k * product.k.scalars
            return tile.multiply(
                lambda i: tir.load(product.scalars, at + i * product.m.scalars),
                lambda o, lanes: tir.load(buffer, origin + k * pitch + o, lanes),
            )

        def coordinates(i: int, offset: Index) -> tuple[Index, ...]:
            place = {**batch, product.row: m + i, len(product.axes) - 1: n + offset}
            return tuple(place[index] for index in range(len(product.axes)))

        def chain(_: Index, first: Index, last: Index) -> tirx.Stmt:
            return tir.loop(last - first, step, "step", start=first)

        code, total = sum_chains(tile, 1, product.k.extent, chain)
        return tir.sequence([*code, total.finish(self.problem, coordinates)])
