"""A thread block's part of a product of matrices: panels of both operands in shared memory, sums in registers.

While the threads multiply one pair of panels, the next one is on its way from device memory to registers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.contraction.product import Operand, Product
from autotm.kernels.cuda.stage import Ids, Stage, barrier, launch, load_vector, local, store_vector, unrolled

Finish = Callable[[Index, Index, Index, Index, tirx.Expr], tirx.Stmt]
"""(part, group, m, n, element) -> what stores it."""


class Share(Protocol):
    """How a product is shared among blocks and their threads."""

    @property
    def rows(self) -> int:
        """Results of a block, down."""

    @property
    def columns(self) -> int:
        """Results of a block, across."""

    @property
    def steps(self) -> int:
        """Terms of a panel."""

    @property
    def threads(self) -> int:
        """Of a block."""

    @property
    def results(self) -> int:
        """Of a thread."""


def part_steps(product: Product, share: Share, parts: int) -> int:
    """Terms of a part: whole panels."""
    return math.ceil(math.ceil(product.steps / parts) / share.steps) * share.steps


@dataclass(frozen=True)
class Panel(ABC):
    """One operand's panel: where it comes from, where it is kept on the way, and where it ends.

    Attributes:
        operand: what is read.
        extent: rows or columns of the product.
        size: of these in a block.
        steps: terms in it.
        packed: neighbouring terms that a thread fetches together at least.
        threads: of the block.
        registers: of a thread, for what it fetches.
        memory: of the block.
    """

    operand: Operand
    extent: int
    size: int
    steps: int
    packed: int
    threads: int
    registers: tirx.Buffer
    memory: tirx.Buffer

    @staticmethod
    def fetched(operand: Operand, size: int, share: Share, packed: int, name: str) -> tirx.Buffer:
        """Registers for what a thread fetches."""
        own, along = _fetched_at_once(operand, packed)
        turns = math.ceil(size * share.steps / (own * along) / share.threads)
        return local(turns * own * along, "float32", f"{name}_next")

    @abstractmethod
    def keep(self, register: Index, own: Index, step: Index) -> tirx.Stmt:
        """Put what lies from a register on into shared memory, given its row or column, and its step."""

    def turns(self, thread: tirx.Expr, body: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        """`body(first register, row or column within the block, step within the panel)` for what a thread fetches."""
        own, along = _fetched_at_once(self.operand, self.packed)
        count = self.size * self.steps // (own * along)

        def turn(index: Index) -> tirx.Stmt:
            def one(at: Index) -> tirx.Stmt:
                if self.operand.along_k:
                    wide = self.steps // along
                    return body(index * (own * along), at // wide, at % wide * along)
                wide = self.size // own
                return body(index * (own * along), at % wide * own, at // wide * along)

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

        def several(register: Index, own: Index, step: Index) -> tirx.Stmt:
            wide, along = _fetched_at_once(self.operand, self.packed)
            apart = vector if self.operand.along_k else 1
            reads = [one(register + i * vector, own, step + i * apart) for i in range(wide * along // vector)]
            return tir.sequence(reads)

        return self.turns(thread, several)

    def put(self, thread: tirx.Expr) -> tirx.Stmt:
        """From registers to shared memory."""
        return self.turns(thread, self.keep)


def _fetched_at_once(operand: Operand, packed: int) -> tuple[int, int]:
    """Rows or columns, and terms, that a thread fetches together."""
    return (1, max(operand.vector, packed)) if operand.along_k else (operand.vector, packed)


AShare = TypeVar("AShare", bound=Share)
APanel = TypeVar("APanel", bound=Panel)


@dataclass(frozen=True)
class Block(ABC, Generic[AShare, APanel]):
    """What computes a share of a product.

    Attributes:
        product: of which matrices.
        share: how it is shared.
        parts: pieces of its sums, which different blocks add up.
        finish: what becomes of a result.
    """

    product: Product
    share: AShare
    parts: int
    finish: Finish

    @abstractmethod
    def panels(self) -> Sequence[APanel]:
        """Of the left and of the right operand."""

    @abstractmethod
    def multiply(self, panels: Sequence[APanel], sums: tirx.Buffer, thread: tirx.Expr) -> tirx.Stmt:
        """Add the product of two panels."""

    @abstractmethod
    def places(self, thread: tirx.Expr, write: Callable[[Index, Index, Index], tirx.Stmt]) -> tirx.Stmt:
        """`write(row, column, number)` for each of a thread's results, within the block."""

    def stage(self) -> Stage:
        """The launch."""
        product, share = self.product, self.share
        grid = [
            math.ceil(product.rows / share.rows),
            math.ceil(product.columns / share.columns),
            product.groups * self.parts,
        ]
        return launch(grid, [share.threads], self._body)

    def _body(self, ids: Ids, threads: Ids) -> tirx.Stmt:
        product, share, parts = self.product, self.share, self.parts
        left, right = self.panels()
        sums = local(share.results, "float32", "sums")
        length = part_steps(product, share, parts)
        whole = product.steps % share.steps == 0 and length * parts == product.steps
        thread = threads[0]

        row, column = ids[0] * share.rows, ids[1] * share.columns
        group, part = (ids[2], tir.number(0)) if parts == 1 else (ids[2] // parts, ids[2] % parts)
        end, panels = None if whole else product.steps, length // share.steps

        def fetch(panel: Index) -> tirx.Stmt:
            first = part * length + panel * share.steps
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
            inside = [m < tir.number(product.rows)] if product.rows % share.rows else []
            inside += [n < tir.number(product.columns)] if product.columns % share.columns else []
            write = self.finish(part, group, m, n, tir.load(sums, number))
            return tir.choose(tirx.all(*inside), write, None) if inside else write

        buffers = [left.memory, right.memory, left.registers, right.registers, sums]
        clear = unrolled(share.results, lambda i: tir.store(sums, i, tir.zeros(1)))
        first = [fetch(tir.number(0)), left.put(thread), right.put(thread), barrier()]
        loop = tir.loop(panels, turn, "panel")
        return tir.sequence([*map(tirx.AllocBuffer, buffers), clear, *first, loop, self.places(thread, store)])
