"""Products of matrices by tiles, on tensor cores: factors rounded to tf32 or bf16, each warp's sums in float32.

A factor is rounded once, on its way to shared memory. Rows, columns and steps that a tile has beyond the product's are
zeros there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.contraction.instructions import COLUMNS, PACKED, ROWS, WORDS, add_product, rounded
from autotm.kernels.cuda.contraction.product import Operand, Product
from autotm.kernels.cuda.contraction.staging import Block, Finish, Panel
from autotm.kernels.cuda.device import WARP
from autotm.kernels.cuda.stage import Stage, load_vector, local, shared, store_vector, unrolled
from autotm.model.machine import Products

_PAD_OF_STEPS, _PAD_OF_ROWS = 4, 8
"""Words between lines of a panel: the 8 x 4 words that a warp reads at once lie in 32 different banks."""


@dataclass(frozen=True)
class WarpTile:
    """How a product is shared among warps.

    Attributes:
        rows, columns: results of a block.
        own_rows, own_columns: results of a warp.
        words: of a row or column in a panel.
        products: what factors are rounded to.
    """

    rows: int
    columns: int
    own_rows: int
    own_columns: int
    words: int
    products: Products

    @property
    def steps(self) -> int:
        """Terms of a panel."""
        return self.words * PACKED[self.products]

    @property
    def threads(self) -> int:
        """Of a block."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns) * WARP

    @property
    def results(self) -> int:
        """Of a thread."""
        return self.own_rows * self.own_columns // WARP


def warp_tiled(product: Product, tile: WarpTile, parts: int, finish: Finish) -> Stage:
    """The stage that computes a product, its sums in `parts` pieces that different blocks add up."""
    return _Block(product, tile, parts, finish).stage()


@dataclass(frozen=True)
class WordPanel(Panel):
    """Words of rounded factors: along steps where these lie together in device memory, else along rows or columns.

    Attributes:
        products: what the factors are rounded to.
    """

    products: Products

    @classmethod
    def of(cls, operand: Operand, extent: int, size: int, tile: WarpTile, name: str) -> WordPanel:
        """The panel of a tile, given the rows or columns of the product and of the tile."""
        packed = PACKED[tile.products]
        registers = cls.fetched(operand, size, tile, packed, name)
        words = size * (tile.words + _PAD_OF_STEPS) if operand.along_k else tile.words * (size + _PAD_OF_ROWS)
        memory = shared(words, "uint32", f"{name}_panel")
        return cls(operand, extent, size, tile.steps, packed, tile.threads, registers, memory, tile.products)

    def place(self, own: Index, word: Index) -> Index:
        """Of a row's or column's word."""
        if self.operand.along_k:
            return own * (self.steps // self.packed + _PAD_OF_STEPS) + word
        return word * (self.size + _PAD_OF_ROWS) + own

    def keep(self, register: Index, own: Index, step: Index) -> tirx.Stmt:
        """Round the factors, and put their words into shared memory."""
        vector, packed = self.operand.vector, self.packed
        place = self.place(own, step // packed)
        if packed == 1 or not self.operand.along_k:
            factors = [load_vector(self.registers, register + i * vector, vector) for i in range(packed)]
            return store_vector(self.memory, place, rounded(self.products, factors), vector)
        words = max(vector, packed) // packed
        together = local(words, "uint32", "together")

        def pack(i: int) -> tirx.Stmt:
            factors = [tir.load(self.registers, register + i * packed + n) for n in range(packed)]
            return tir.store(together, i, rounded(self.products, factors))

        write = store_vector(self.memory, place, load_vector(together, 0, words), words)
        return tir.sequence([tirx.AllocBuffer(together), *map(pack, range(words)), write])


@dataclass(frozen=True)
class _Block(Block[WarpTile, WordPanel]):
    def panels(self) -> Sequence[WordPanel]:
        product, tile = self.product, self.share
        return [
            WordPanel.of(product.left, product.rows, tile.rows, tile, "left"),
            WordPanel.of(product.right, product.columns, tile.columns, tile, "right"),
        ]

    def _place(self, thread: tirx.Expr) -> tuple[Index, Index, Index, Index]:
        """The first row and column of a thread's warp, and its own row and column among the 8 x 4 threads of it."""
        tile = self.share
        warp, lane = thread // WARP, thread % WARP
        across = tile.columns // tile.own_columns
        return warp // across * tile.own_rows, warp % across * tile.own_columns, lane // 4, lane % 4

    def multiply(self, panels: Sequence[WordPanel], sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        tile = self.share
        row, column, down, across = self._place(thread)
        high, wide = tile.own_rows // ROWS, tile.own_columns // COLUMNS
        left, right = local(4 * high, "uint32", "a"), local(2 * wide, "uint32", "b")

        def word(panel: WordPanel, own: Index, at: Index) -> tirx.Expr:
            return tir.load(panel.memory, panel.place(own, at))

        def multiply(i: Index, j: Index) -> tirx.Stmt:
            at = (i * wide + j) * 4
            return add_product(tile.products, *map(tir.load, (sums, left, right), (at, i * 4, j * 2)))

        def step(k: Index) -> tirx.Stmt:
            def rows(i: Index) -> tirx.Stmt:
                words = [
                    word(panels[0], row + i * ROWS + down + n % 2 * 8, k * WORDS + across + n // 2 * 4)
                    for n in range(4)
                ]
                return tir.sequence([tir.store(left, i * 4 + n, value) for n, value in enumerate(words)])

            def columns(j: Index) -> tirx.Stmt:
                words = [word(panels[1], column + j * COLUMNS + down, k * WORDS + across + n * 4) for n in range(2)]
                return tir.sequence([tir.store(right, j * 2 + n, value) for n, value in enumerate(words)])

            products = unrolled(high, lambda i: unrolled(wide, lambda j: multiply(i, j), "j"), "i")
            return tir.sequence([unrolled(high, rows, "i"), unrolled(wide, columns, "j"), products])

        return tir.sequence([*map(tirx.AllocBuffer, (left, right)), unrolled(tile.words // WORDS, step, "k")])

    def places(self, thread: tirx.Expr, write: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        tile = self.share
        row, column, down, across = self._place(thread)
        high, wide = tile.own_rows // ROWS, tile.own_columns // COLUMNS

        def one(i: Index, j: Index, n: Index) -> tirx.Stmt:
            m, own = row + i * ROWS + down + n // 2 * 8, column + j * COLUMNS + across * 2 + n % 2
            return write(m, own, (i * wide + j) * 4 + n)

        def rows(i: Index) -> tirx.Stmt:
            return unrolled(wide, lambda j: unrolled(4, lambda n: one(i, j, n), "n"), "j")

        return unrolled(high, rows, "i")
