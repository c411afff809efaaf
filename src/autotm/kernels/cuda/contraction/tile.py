"""Products of matrices by tiles: a thread block computes one in registers from panels in shared memory.

While the threads multiply one pair of panels, the next one is on its way from device memory to registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.contraction.product import Operand, Product
from autotm.kernels.cuda.stage import (
    Ids,
    Stage,
    barrier,
    launch,
    load_vector,
    local,
    shared,
    store_vector,
    unrolled,
)

_PAD = 4
"""Floats between rows of a panel, so that columns lie in different banks; rows still start at whole vectors."""
_TOGETHER = 4
"""Neighbouring results of a thread; its next ones lie a share of the tile further on."""

Finish = Callable[[Index, Index, Index, Index, tirx.Expr], tirx.Stmt]
"""(part, group, m, n, element) -> what stores it."""


@dataclass(frozen=True)
class Tile:
    """How a product is shared.

    Attributes:
        rows, columns: results of a block.
        steps: terms of a panel.
        own_rows, own_columns: results of a thread.
    """

    rows: int
    columns: int
    steps: int
    own_rows: int
    own_columns: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns)

    @property
    def shared_bytes(self) -> int:
        """Of both panels."""
        return 4 * self.steps * (self.rows + self.columns + 2 * _PAD)


def tiled(product: Product, tile: Tile, parts: int, finish: Finish) -> Stage:
    """The stage that computes a product, its sums in `parts` pieces that different blocks add up."""
    return _Block(product, tile, parts, finish).stage()


def part_steps(product: Product, tile: Tile, parts: int) -> int:
    """Terms of a part: whole panels."""
    return math.ceil(math.ceil(product.steps / parts) / tile.steps) * tile.steps


@dataclass(frozen=True)
class _Panel:
    """One operand's panel: where it comes from, where it is kept on the way, and where it ends."""

    operand: Operand
    extent: int
    """Rows or columns of the product."""
    size: int
    """Of these in a tile."""
    steps: int
    threads: int
    registers: tirx.Buffer
    memory: tirx.Buffer

    @classmethod
    def of(cls, operand: Operand, extent: int, size: int, tile: Tile, name: str) -> _Panel:
        turns = math.ceil(size * tile.steps / operand.vector / tile.threads)
        return cls(
            operand,
            extent,
            size,
            tile.steps,
            tile.threads,
            local(turns * operand.vector, "float32", f"{name}_next"),
            shared(tile.steps * (size + _PAD), "float32", f"{name}_panel"),
        )

    def turns(self, thread: tirx.Expr, body: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        """`body(first register, row or column within the tile, step within the panel)` for a thread's vectors."""
        vector = self.operand.vector
        count = self.size * self.steps // vector

        def turn(index: Index) -> tirx.Stmt:
            def one(at: Index) -> tirx.Stmt:
                wide = (self.steps if self.operand.along_k else self.size) // vector
                across, along = at // wide, at % wide * vector
                own, step = (across, along) if self.operand.along_k else (along, across)
                return body(index * vector, own, step)

            at = index * self.threads + thread
            return tir.choose(count % self.threads == 0 or at < tir.number(count), one(at), None)

        return unrolled(math.ceil(count / self.threads), turn)

    def fetch(self, thread: tirx.Expr, group: Index, origin: Index, first: Index, end: Index | None) -> tirx.Stmt:
        """From device memory to registers: steps from `first` on, below `end` if that is not sure."""
        vector = self.operand.vector
        zero = tir.zeros(vector)

        def one(register: Index, own: Index, step: Index) -> tirx.Stmt:
            mine, k = origin + own, first + step
            position, inside = self.operand.at(group, mine, k)
            conditions = [mine < tir.number(self.extent)] if self.extent % self.size else []
            conditions += [k < tir.number(end)] if end is not None else []
            value = load_vector(self.operand.buffer, position, vector)
            read = store_vector(self.registers, register, value, vector)
            if not conditions + inside:
                return read
            nothing = store_vector(self.registers, register, zero, vector)
            return tir.choose(tirx.all(*conditions, *inside), read, nothing)

        return self.turns(thread, one)

    def put(self, thread: tirx.Expr) -> tirx.Stmt:
        """From registers to shared memory, steps by rows or columns."""
        vector, stride = self.operand.vector, self.size + _PAD

        def one(register: Index, own: Index, step: Index) -> tirx.Stmt:
            if not self.operand.along_k:
                value = load_vector(self.registers, register, vector)
                return store_vector(self.memory, step * stride + own, value, vector)
            return unrolled(
                vector,
                lambda i: tir.store(self.memory, (step + i) * stride + own, tir.load(self.registers, register + i)),
            )

        return self.turns(thread, one)


@dataclass(frozen=True)
class _Block:
    product: Product
    tile: Tile
    parts: int
    finish: Finish

    def stage(self) -> Stage:
        product, tile = self.product, self.tile
        grid = [
            math.ceil(product.rows / tile.rows),
            math.ceil(product.columns / tile.columns),
            product.groups * self.parts,
        ]
        return launch(grid, [tile.threads], self._body)

    def _body(self, ids: Ids, threads: Ids) -> tirx.Stmt:
        product, tile, parts = self.product, self.tile, self.parts
        left = _Panel.of(product.left, product.rows, tile.rows, tile, "left")
        right = _Panel.of(product.right, product.columns, tile.columns, tile, "right")
        sums = local(tile.own_rows * tile.own_columns, "float32", "sums")
        length = part_steps(product, tile, parts)
        whole = product.steps % tile.steps == 0 and length * parts == product.steps
        thread = threads[0]

        row, column = ids[0] * tile.rows, ids[1] * tile.columns
        group, part = (ids[2], tir.number(0)) if parts == 1 else (ids[2] // parts, ids[2] % parts)
        end, panels = None if whole else product.steps, length // tile.steps

        def fetch(panel: Index) -> tirx.Stmt:
            first = part * length + panel * tile.steps
            return tir.sequence(
                [left.fetch(thread, group, row, first, end), right.fetch(thread, group, column, first, end)]
            )

        def turn(panel: Index) -> tirx.Stmt:
            steps = [self._multiply(left, right, sums, thread), barrier()]
            if panels > 1:
                more = panel + 1 < tir.number(panels)
                put = tir.sequence([left.put(thread), right.put(thread)])
                steps = [tir.choose(more, fetch(panel + 1), None), *steps, tir.choose(more, put, None), barrier()]
            return tir.sequence(steps)

        buffers = [left.memory, right.memory, left.registers, right.registers, sums]
        clear = unrolled(tile.own_rows * tile.own_columns, lambda i: tir.store(sums, i, tir.zeros(1)))
        first = [fetch(tir.number(0)), left.put(thread), right.put(thread), barrier()]
        loop = tir.loop(panels, turn, "panel")
        store = self._store(sums, thread, row, column, group, part)
        return tir.sequence([*map(tirx.AllocBuffer, buffers), clear, *first, loop, store])

    def _place(self, thread: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """A thread's row and column among the threads: neighbours share a row."""
        across = self.tile.columns // self.tile.own_columns
        return thread // across, thread % across

    def _multiply(self, left: _Panel, right: _Panel, sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        tile = self.tile
        down, across = self._place(thread)
        factors = [local(own, "float32", name) for own, name in ((tile.own_rows, "a"), (tile.own_columns, "b"))]

        def read(panel: _Panel, factor: tirx.Buffer, own: int, place: tirx.Expr, step: Index) -> tirx.Stmt:
            together = min(own, _TOGETHER)

            def vector(i: Index) -> tirx.Stmt:
                at = step * (panel.size + _PAD) + i * (panel.size // (own // together)) + place * together
                return store_vector(factor, i * together, load_vector(panel.memory, at, together), together)

            return unrolled(own // together, vector)

        def add(i: Index, j: Index) -> tirx.Stmt:
            at = i * tile.own_columns + j
            return tir.store(sums, at, tir.load(sums, at) + tir.load(factors[0], i) * tir.load(factors[1], j))

        def step(k: Index) -> tirx.Stmt:
            return tir.sequence(
                [
                    read(left, factors[0], tile.own_rows, down, k),
                    read(right, factors[1], tile.own_columns, across, k),
                    unrolled(tile.own_rows, lambda i: unrolled(tile.own_columns, lambda j: add(i, j), "j"), "i"),
                ]
            )

        return tir.sequence([*map(tirx.AllocBuffer, factors), unrolled(tile.steps, step, "k")])

    def _store(
        self, sums: tirx.Buffer, thread: tirx.Expr, row: Index, column: Index, group: Index, part: Index
    ) -> tirx.Stmt:
        product, tile = self.product, self.tile
        down, across = self._place(thread)

        def line(own: int, size: int, place: tirx.Expr, start: Index, i: Index) -> Index:
            together = min(own, _TOGETHER)
            return start + i // together * (size // (own // together)) + place * together + i % together

        def rows(i: Index) -> tirx.Stmt:
            m = line(tile.own_rows, tile.rows, down, row, i)

            def columns(j: Index) -> tirx.Stmt:
                n = line(tile.own_columns, tile.columns, across, column, j)
                inside = [m < tir.number(product.rows)] if product.rows % tile.rows else []
                inside += [n < tir.number(product.columns)] if product.columns % tile.columns else []
                write = self.finish(part, group, m, n, tir.load(sums, i * tile.own_columns + j))
                return tir.choose(tirx.all(*inside), write, None) if inside else write

            return unrolled(tile.own_columns, columns, "j")

        return unrolled(tile.own_rows, rows, "i")
