"""Products of matrices by tiles of a thread block: operands in shared memory, sums in float32 or on tensor cores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import tvm
from tvm import tirx

from autotm.kernels import tir
from autotm.kernels.cuda.device import WARP
from autotm.kernels.cuda.product import Operand, Product
from autotm.kernels.cuda.stage import Ids, Stage, barrier, launch, load_vector, local, shared, store_vector, unrolled
from autotm.kernels.tir import Index
from autotm.model.machine import Products

# Tensor cores: instructions that C++ has no operators for, as functions in CUDA C++ (PTX ISA, `mma` and `cvt`).
#
# Factors lie in *words* of 32 bits: one of tf32, or two of bf16, the one with the smaller k in the lower half.
# Counted in words, the fragments of both instructions are the same: a warp multiplies 16 x 8 words by 8 words x 8.

PACKED = {"float32": 1, "tf32": 1, "bf16": 2}
"""Factors in a word."""
ROWS, COLUMNS, WORDS = 16, 8, 8
"""Extents of one product of a warp: rows, columns, and words along k."""
_ROUNDED_TF32 = """\
static __device__ __forceinline__ unsigned rounded_tf32(float factor) {
  unsigned word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(factor));
  return word;
}
"""
_ROUNDED_BF16 = """\
static __device__ __forceinline__ unsigned rounded_bf16(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
"""
_ADD_PRODUCT = """\
static __device__ __forceinline__ void add_product_{products}(float* sums, const unsigned* a, const unsigned* b) {{
  asm volatile("mma.sync.aligned.{shape}.row.col.f32.{products}.{products}.f32 "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""
_FUNCTIONS = {
    "rounded_tf32": _ROUNDED_TF32,
    "rounded_bf16": _ROUNDED_BF16,
    "add_product_tf32": _ADD_PRODUCT.format(products="tf32", shape="m16n8k8"),
    "add_product_bf16": _ADD_PRODUCT.format(products="bf16", shape="m16n8k16"),
}


def rounded(products: Products, factors: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the word of `PACKED` factors; of vectors of factors, a vector of words."""
    lanes = tvm.DataType(factors[0].ty.dtype).lanes
    return tirx.call_pure_extern("uint32" if lanes == 1 else f"uint32x{lanes}", f"rounded_{products}", *factors)


def add_product(products: Products, sums: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Stmt:
    """Emit a thread's part in what all threads of a warp do together.

    Args:
        products: what the words are.
        sums: first of 4 floats.
        left: first of 4 words.
        right: first of 2 words.
    """
    places = (tirx.address_of(first) for first in (sums, left, right))
    return tirx.Evaluate(tirx.call_extern("void", f"add_product_{products}", *places))


def functions_in(source: str) -> str:
    """Return the definitions of those functions in `_FUNCTIONS` that `source` names."""
    return "".join(text for name, text in _FUNCTIONS.items() if name in source)


# A thread block's part of a product of matrices: panels of both operands in shared memory, sums in registers.
#
# While the threads multiply one pair of panels, the next one is on its way from device memory to registers.

Finish = Callable[[Index, Index, Index, Index, tirx.Expr], tirx.Stmt]
"""(part, group, m, n, element) -> the statement that stores the element."""


_PAD = 4
"""Floats between rows of a panel, so that columns lie in different banks; rows still start at whole vectors."""


@dataclass(frozen=True)
class Tile:
    """How thread blocks, and their threads or warps, share a product: warps where factors are rounded.

    Attributes:
        rows, columns: results of a block.
        steps: terms of a panel.
        own_rows, own_columns: results of a thread, or of a warp.
        products: what factors are rounded to.
    """

    rows: int
    columns: int
    steps: int
    own_rows: int
    own_columns: int
    products: Products = "float32"

    @property
    def sharers(self) -> int:
        """Threads that share `own_rows` and `own_columns`."""
        return 1 if self.products == "float32" else WARP

    @property
    def packed(self) -> int:
        """Factors in a word, which a thread fetches together at least."""
        return PACKED[self.products]

    @property
    def words(self) -> int:
        """Words of a row or column in a panel."""
        return self.steps // self.packed

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns) * self.sharers

    @property
    def results(self) -> int:
        """Results of a thread."""
        return self.own_rows * self.own_columns // self.sharers


def part_steps(product: Product, tile: Tile, parts: int) -> int:
    """Return the terms of a part: whole panels."""
    return math.ceil(math.ceil(product.steps / parts) / tile.steps) * tile.steps


@dataclass(frozen=True)
class Panel(ABC):
    """One operand's panel: where it comes from, where it is kept on the way, and where it ends.

    Attributes:
        operand: what is read.
        extent: rows or columns of the product.
        size: of these in a block.
        tile: how the product is shared.
        registers: of a thread, for what it fetches.
        memory: of the block.
    """

    operand: Operand
    extent: int
    size: int
    tile: Tile
    registers: tirx.Buffer
    memory: tirx.Buffer

    @classmethod
    def of(cls, operand: Operand, extent: int, size: int, tile: Tile, name: str) -> Self:
        """Return the panel of a tile, given the rows or columns of the product and of the tile."""
        own, along = _fetched_at_once(operand, tile.packed)
        turns = math.ceil(size * tile.steps / (own * along) / tile.threads)
        registers = local(turns * own * along, "float32", f"{name}_next")
        return cls(operand, extent, size, tile, registers, cls.memory_of(operand, size, tile, f"{name}_panel"))

    @staticmethod
    @abstractmethod
    def memory_of(operand: Operand, size: int, tile: Any, name: str) -> tirx.Buffer:
        """Return shared memory that holds a panel."""

    @abstractmethod
    def keep(self, register: Index, own: Index, step: Index) -> tirx.Stmt:
        """Put what lies from a register on into shared memory, given its row or column, and its step."""

    def turns(self, thread: tirx.Expr, body: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        """Emit `body(first register, row or column in the block, step in the panel)` for what a thread fetches."""
        own, along = _fetched_at_once(self.operand, self.tile.packed)
        count = self.size * self.tile.steps // (own * along)

        def turn(index: Index) -> tirx.Stmt:
            def one(at: Index) -> tirx.Stmt:
                if self.operand.along_k:
                    wide = self.tile.steps // along
                    return body(index * (own * along), at // wide, at % wide * along)
                wide = self.size // own
                return body(index * (own * along), at % wide * own, at // wide * along)

            at = index * self.tile.threads + thread
            return tir.choose(count % self.tile.threads == 0 or at < tir.number(count), one(at), None)

        return unrolled(math.ceil(count / self.tile.threads), turn)

    def fetch(self, thread: tirx.Expr, group: Index, origin: Index, first: Index, end: Index | None) -> tirx.Stmt:
        """Load from device memory into registers: steps from `first` on, below `end` if that is not sure."""
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

        def several(register: Index, own: Index, step: Index) -> tirx.Stmt:
            wide, along = _fetched_at_once(self.operand, self.tile.packed)
            apart = vector if self.operand.along_k else 1
            reads = [one(register + i * vector, own, step + i * apart) for i in range(wide * along // vector)]
            return tir.sequence(reads)

        return self.turns(thread, several)

    def put(self, thread: tirx.Expr) -> tirx.Stmt:
        """Store from registers into shared memory."""
        return self.turns(thread, self.keep)


def _fetched_at_once(operand: Operand, packed: int) -> tuple[int, int]:
    """Return the rows or columns, and terms, that a thread fetches together."""
    return (1, max(operand.vector, packed)) if operand.along_k else (operand.vector, packed)


@dataclass(frozen=True)
class Block(ABC):
    """A thread block that computes one tile of a product.

    Attributes:
        product: the product that the tile is part of.
        tile: how blocks and threads share the product.
        parts: pieces of the product's sums, which different blocks add up.
        finish: makes the statement that stores a result.
    """

    panel: ClassVar[type[Panel]]
    product: Product
    tile: Tile
    parts: int
    finish: Finish

    @abstractmethod
    def multiply(self, panels: Sequence[Any], sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        """Add the product of two panels."""

    @abstractmethod
    def places(self, thread: tirx.Expr, write: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        """Emit `write(row, column, number)` for each of a thread's results, within the block."""

    def stage(self) -> Stage:
        """Emit the launch."""
        product, tile = self.product, self.tile
        grid = [math.ceil(product.rows / tile.rows), math.ceil(product.columns / tile.columns)]
        return launch([*grid, product.groups * self.parts], [tile.threads], self._body)

    def _body(self, ids: Ids, threads: Ids) -> tirx.Stmt:
        product, tile, parts = self.product, self.tile, self.parts
        left = self.panel.of(product.left, product.rows, tile.rows, tile, "left")
        right = self.panel.of(product.right, product.columns, tile.columns, tile, "right")
        sums = local(tile.results, "float32", "sums")
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
            steps = [self.multiply([left, right], sums, thread), barrier()]
            if panels > 1:
                more = panel + 1 < tir.number(panels)
                put = tir.sequence([left.put(thread), right.put(thread)])
                steps = [tir.choose(more, fetch(panel + 1), None), *steps, tir.choose(more, put, None), barrier()]
            return tir.sequence(steps)

        def store(m: Index, n: Index, number: Index) -> tirx.Stmt:
            m, n = row + m, column + n
            inside = [m < tir.number(product.rows)] if product.rows % tile.rows else []
            inside += [n < tir.number(product.columns)] if product.columns % tile.columns else []
            write = self.finish(part, group, m, n, tir.load(sums, number))
            return tir.choose(tirx.all(*inside), write, None) if inside else write

        buffers = [left.memory, right.memory, left.registers, right.registers, sums]
        clear = unrolled(tile.results, lambda i: tir.store(sums, i, tir.zeros(1)))
        first = [fetch(tir.number(0)), left.put(thread), right.put(thread), barrier()]
        loop = tir.loop(panels, turn, "panel")
        return tir.sequence([*map(tirx.AllocBuffer, buffers), clear, *first, loop, self.places(thread, store)])


# Products of matrices by tiles, in float32: each thread multiplies numbers of its own rows and columns.

_TOGETHER = 4
"""Neighbouring results of a thread; its next ones lie a share of the tile further on."""


@dataclass(frozen=True)
class _FloatPanel(Panel):
    """Steps by rows or columns."""

    @staticmethod
    def memory_of(_operand: Operand, size: int, tile: Tile, name: str) -> tirx.Buffer:
        return shared(tile.steps * (size + _PAD), "float32", name)

    def keep(self, register: Index, own: Index, step: Index) -> tirx.Stmt:
        vector, stride = self.operand.vector, self.size + _PAD
        if not self.operand.along_k:
            value = load_vector(self.registers, register, vector)
            return store_vector(self.memory, step * stride + own, value, vector)
        return unrolled(
            vector, lambda i: tir.store(self.memory, (step + i) * stride + own, tir.load(self.registers, register + i))
        )


@dataclass(frozen=True)
class _FloatBlock(Block):
    panel = _FloatPanel

    def _place(self, thread: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Return a thread's row and column among the threads: neighbours share a row."""
        across = self.tile.columns // self.tile.own_columns
        return thread // across, thread % across

    def multiply(self, panels: Sequence[_FloatPanel], sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        tile = self.tile
        down, across = self._place(thread)
        factors = [local(own, "float32", name) for own, name in ((tile.own_rows, "a"), (tile.own_columns, "b"))]

        def read(panel: _FloatPanel, factor: tirx.Buffer, own: int, place: tirx.Expr, step: Index) -> tirx.Stmt:
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
        tile = self.tile
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


# Products of matrices by tiles, on tensor cores: factors rounded to tf32 or bf16, each warp's sums in float32.
#
# A factor is rounded once, on its way to shared memory. Rows, columns and steps that a tile has beyond the product's
# are zeros there.

_PAD_OF_STEPS, _PAD_OF_ROWS = 4, 8
"""Words between lines of a panel: the 8 x 4 words that a warp reads at once lie in 32 different banks."""


@dataclass(frozen=True)
class WordPanel(Panel):
    """Words of rounded factors: along steps where these lie together in device memory, else along rows or columns."""

    @staticmethod
    def memory_of(operand: Operand, size: int, tile: Tile, name: str) -> tirx.Buffer:
        """Return shared memory that holds a panel."""
        words = size * (tile.words + _PAD_OF_STEPS) if operand.along_k else tile.words * (size + _PAD_OF_ROWS)
        return shared(words, "uint32", name)

    def place(self, own: Index, word: Index) -> Index:
        """Return the place of a row's or column's word."""
        if self.operand.along_k:
            return own * (self.tile.words + _PAD_OF_STEPS) + word
        return word * (self.size + _PAD_OF_ROWS) + own

    def keep(self, register: Index, own: Index, step: Index) -> tirx.Stmt:
        """Round the factors, and put their words into shared memory."""
        vector, packed = self.operand.vector, self.tile.packed
        place = self.place(own, step // packed)
        if packed == 1 or not self.operand.along_k:
            factors = [load_vector(self.registers, register + i * vector, vector) for i in range(packed)]
            return store_vector(self.memory, place, rounded(self.tile.products, factors), vector)
        words = max(vector, packed) // packed
        together = local(words, "uint32", "together")

        def pack(i: int) -> tirx.Stmt:
            factors = [tir.load(self.registers, register + i * packed + n) for n in range(packed)]
            return tir.store(together, i, rounded(self.tile.products, factors))

        write = store_vector(self.memory, place, load_vector(together, 0, words), words)
        return tir.sequence([tirx.AllocBuffer(together), *map(pack, range(words)), write])


@dataclass(frozen=True)
class _TensorCoreBlock(Block):
    panel = WordPanel

    def _place(self, thread: tirx.Expr) -> tuple[Index, Index, Index, Index]:
        """Return the first row and column of a thread's warp, and the thread's row and column among its 8 x 4."""
        tile = self.tile
        warp, lane = thread // WARP, thread % WARP
        across = tile.columns // tile.own_columns
        return warp // across * tile.own_rows, warp % across * tile.own_columns, lane // 4, lane % 4

    def multiply(self, panels: Sequence[WordPanel], sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        tile = self.tile
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
        tile = self.tile
        row, column, down, across = self._place(thread)
        high, wide = tile.own_rows // ROWS, tile.own_columns // COLUMNS

        def one(i: Index, j: Index, n: Index) -> tirx.Stmt:
            m, own = row + i * ROWS + down + n // 2 * 8, column + j * COLUMNS + across * 2 + n % 2
            return write(m, own, (i * wide + j) * 4 + n)

        def rows(i: Index) -> tirx.Stmt:
            return unrolled(wide, lambda j: unrolled(4, lambda n: one(i, j, n), "n"), "j")

        return unrolled(high, rows, "i")


def tiled(product: Product, tile: Tile, parts: int, finish: Finish) -> Stage:
    """Emit the stage that computes a product, its sums in `parts` pieces that different blocks add up."""
    block = _FloatBlock if tile.products == "float32" else _TensorCoreBlock
    return block(product, tile, parts, finish).stage()
