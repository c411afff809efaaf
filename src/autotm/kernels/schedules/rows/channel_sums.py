"""Sums over all rows of a (rows, channels) matrix, several for each channel, in one pass at the memory's speed.

Loops: parts of the rows, shared among the threads; in a part, blocks of rows that stay in the first-level cache; in a
block, groups of channels, whose sums stay in registers while the rows of the block are added. A block's sums are
added to its part's, which lie in a workspace, and last the parts' to one another. So no level adds more than about
sqrt(rows) terms one after the other, and the order never depends on which thread was first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir, tirx

from autotm.kernels.code import PARALLEL_BYTES, Code, Index, TargetInfo, replace_body, tir

_BLOCK_BYTES = 16 << 10
_LEAST_ROWS, _MOST_ROWS = 16, 64
_GROUP_VECTORS = 8
"""Long runs of a row are read faster than short ones; half of the registers stay free for the terms."""


@dataclass(frozen=True)
class ChannelSums:
    """What to sum.

    Attributes:
        rows: terms of each sum.
        channels: how many of each sum there are.
        operands: matrices that the terms read.
        terms: (row, channel, lanes) -> the vector of terms of each sum.
        finish: (channel, lanes, the vector of each sum) -> what is stored.
        count: sums of each channel.
    """

    rows: int
    channels: int
    operands: int
    terms: Callable[[Index, Index, int], list[tirx.Expr]]
    finish: Callable[[Index, int, list[tirx.Expr]], tirx.Stmt]
    count: int = 2

    def replace_body(
        self, sch: s_tir.Schedule, info: TargetInfo, threads: int, before: tirx.Stmt | None = None
    ) -> None:
        """Let the function in `sch` compute the sums, after `before`."""
        code = self._code(info, threads)
        first = [before] if before is not None else []
        replace_body(sch, Code(tir.sequence([*first, code.body]), code.workspaces))

    def _code(self, info: TargetInfo, threads: int) -> Code:
        block_rows = min(max(_BLOCK_BYTES // (4 * self.channels * self.operands), _LEAST_ROWS), _MOST_ROWS)
        blocks = -(-self.rows // block_rows)
        parts = min(blocks, -(-math.isqrt(blocks) // threads) * threads)
        partial = tir.workspace(parts * self.count * self.channels, "partial_sums")
        is_parallel = threads > 1 and 4 * self.rows * self.channels * self.operands >= PARALLEL_BYTES

        def place(part: Index, number: int) -> Index:
            return (part * self.count + number) * self.channels

        def sum_part(part: Index) -> tirx.Stmt:
            first, last = tir.share(part, parts, blocks)

            def clear(c: Index, lanes: int) -> tirx.Stmt:
                stores = [tir.store(partial, place(part, i) + c, tir.zeros(lanes), lanes) for i in range(self.count)]
                return tir.sequence(stores)

            def sum_block(block: Index) -> tirx.Stmt:
                start, end = tir.share(block, blocks, self.rows)

                def add(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
                    offsets = [place(part, number) + c for number in range(self.count)]
                    values = [tir.load(partial, at, lanes) + value for at, value in zip(offsets, sums, strict=True)]
                    stores = zip(offsets, values, strict=True)
                    return tir.sequence([tir.store(partial, at, value, lanes) for at, value in stores])

                return self._each_group(info, (start, end), self.terms, add)

            blocks_of = tir.loop(last - first, sum_block, "block", start=first)
            return tir.sequence([tir.spans(self.channels, info.lanes, clear), blocks_of])

        def parts_of(part: Index, c: Index, lanes: int) -> list[tirx.Expr]:
            return [tir.load(partial, place(part, number) + c, lanes) for number in range(self.count)]

        kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
        together = self._each_group(info, (0, parts), parts_of, self.finish)
        return Code(tir.sequence([tir.loop(parts, sum_part, "part", kind), together]), (partial,))

    def _each_group(
        self,
        info: TargetInfo,
        span: tuple[Index, Index],
        terms: Callable[[Index, Index, int], list[tirx.Expr]],
        done: Callable[[Index, int, list[tirx.Expr]], tirx.Stmt],
    ) -> tirx.Stmt:
        """For each group of channels, add the terms over a span, and hand the sums on."""
        width = min(_GROUP_VECTORS, info.registers // (2 * self.count)) * info.lanes

        def group(channel: Index, breadth: int) -> tirx.Stmt:
            first, last = span
            sums = tir.Registers(self.count, breadth)
            vectors = tir.segments(breadth, info.lanes)
            clear = [sums.set(i, o, tir.zeros(n), n) for i in range(self.count) for o, n in vectors]

            def step(row: Index) -> tirx.Stmt:
                return tir.sequence(
                    [
                        sums.set(number, offset, sums.get(number, offset, lanes) + term, lanes)
                        for offset, lanes in vectors
                        for number, term in enumerate(terms(row, channel + offset, lanes))
                    ]
                )

            results = [done(channel + o, n, [sums.get(i, o, n) for i in range(self.count)]) for o, n in vectors]
            return tir.sequence([sums.declare(), *clear, tir.loop(last - first, step, "row", start=first), *results])

        whole, rest = divmod(self.channels, width)
        groups = [tir.loop(whole, lambda index: group(index * width, width), "group")] if whole else []
        return tir.sequence([*groups, *([group(whole * width, rest)] if rest else [])])


def matrix(x: tirx.Buffer) -> tuple[int, int]:
    """Rows and channels of an activation."""
    *leading, channels = tir.extents(x)
    return math.prod(leading), channels
