"""Products of matrices by tiles, in float32: each thread multiplies numbers of its own rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.contraction.product import Operand, Product
from autotm.kernels.cuda.contraction.staging import Block, Finish, Panel
from autotm.kernels.cuda.stage import Stage, load_vector, local, shared, store_vector, unrolled

_PAD = 4
"""Floats between rows of a panel, so that columns lie in different banks; rows still start at whole vectors."""
_TOGETHER = 4
"""Neighbouring results of a thread; its next ones lie a share of the tile further on."""


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
    def results(self) -> int:
        """Of a thread."""
        return self.own_rows * self.own_columns

    @property
    def shared_bytes(self) -> int:
        """Of both panels."""
        return 4 * self.steps * (self.rows + self.columns + 2 * _PAD)


def tiled(product: Product, tile: Tile, parts: int, finish: Finish) -> Stage:
    """The stage that computes a product, its sums in `parts` pieces that different blocks add up."""
    return _Block(product, tile, parts, finish).stage()


@dataclass(frozen=True)
class _Panel(Panel):
    """Steps by rows or columns."""

    @classmethod
    def of(cls, operand: Operand, extent: int, size: int, tile: Tile, name: str) -> _Panel:
        registers = cls.fetched(operand, size, tile, 1, name)
        memory = shared(tile.steps * (size + _PAD), "float32", f"{name}_panel")
        return cls(operand, extent, size, tile.steps, 1, tile.threads, registers, memory)

    def keep(self, register: Index, own: Index, step: Index) -> tirx.Stmt:
        vector, stride = self.operand.vector, self.size + _PAD
        if not self.operand.along_k:
            value = load_vector(self.registers, register, vector)
            return store_vector(self.memory, step * stride + own, value, vector)
        return unrolled(
            vector,
            lambda i: tir.store(self.memory, (step + i) * stride + own, tir.load(self.registers, register + i)),
        )


@dataclass(frozen=True)
class _Block(Block[Tile, _Panel]):
    def panels(self) -> Sequence[_Panel]:
        product, tile = self.product, self.share
        return [
            _Panel.of(product.left, product.rows, tile.rows, tile, "left"),
            _Panel.of(product.right, product.columns, tile.columns, tile, "right"),
        ]

    def _place(self, thread: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """A thread's row and column among the threads: neighbours share a row."""
        across = self.share.columns // self.share.own_columns
        return thread // across, thread % across

    def multiply(self, panels: Sequence[_Panel], sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        tile = self.share
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
                    read(panels[0], factors[0], tile.own_rows, down, k),
                    read(panels[1], factors[1], tile.own_columns, across, k),
                    unrolled(tile.own_rows, lambda i: unrolled(tile.own_columns, lambda j: add(i, j), "j"), "i"),
                ]
            )

        return tir.sequence([*map(tirx.AllocBuffer, factors), unrolled(tile.steps, step, "k")])

    def places(self, thread: tirx.Expr, write: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        tile = self.share
        down, across = self._place(thread)

        def line(own: int, size: int, place: tirx.Expr, i: Index) -> Index:
            together = min(own, _TOGETHER)
            return i // together * (size // (own // together)) + place * together + i % together

        def rows(i: Index) -> tirx.Stmt:
            m = line(tile.own_rows, tile.rows, down, i)

            def columns(j: Index) -> tirx.Stmt:
                return write(m, line(tile.own_columns, tile.columns, across, j), i * tile.own_columns + j)

            return unrolled(tile.own_columns, columns, "j")

        return unrolled(tile.own_rows, rows, "i")
