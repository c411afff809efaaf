"""Grouped convolution: a loop over the groups around the contraction, whose operands are copied out of the whole.

Groups narrower than a vector are taken several at once, with zeros where they do not meet: as many multiplications a
vector as the groups one by one would take, in fewer and longer loops.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from tvm import tirx

from autotm.kernels.code import PARALLEL_BYTES, Code, Index, TargetInfo, tir
from autotm.kernels.schedules.contraction.parts import Output, Problem, copy, fill

Generate = Callable[[Problem, TargetInfo, int], Code]


def each_group(problem: Problem, generate: Generate, info: TargetInfo, threads: int) -> Code:
    """`generate`'s code for one block of groups, run for each block in turn."""
    groups = _Groups(problem, _merged(problem, info.lanes), info.lanes, threads)
    one = groups.one_block()
    code = generate(one, info, threads)

    def block(number: Index) -> tirx.Stmt:
        return tir.sequence([*groups.copy_in(one, number), code.body, groups.copy_out(one, number)])

    spaces = (one.left, one.right, one.product, *code.workspaces)
    return Code(tir.loop(problem.groups // groups.merged, block, "block"), spaces)


def _merged(problem: Problem, lanes: int) -> int:
    """How many groups to take at once: a divisor of their number, no wider together than a vector."""
    buffers = (problem.left, problem.right, problem.product)
    widest = max(int(buffer.shape[-1]) for buffer in buffers) // problem.groups
    fitting = [count for count in range(1, problem.groups + 1) if problem.groups % count == 0]
    return max((count for count in fitting if count * widest <= lanes), default=1)


class _Groups:
    """Copies between the whole operands and those of one block of `merged` groups.

    Every operand and the product hold their groups one after the other along the last axis. Weights have the
    channels of one group only before it, so those of a block are the blocks of a diagonal.
    """

    def __init__(self, problem: Problem, merged: int, lanes: int, threads: int) -> None:
        self.problem = problem
        self.merged = merged
        self._lanes = lanes
        self._threads = threads

    def one_block(self) -> Problem:
        """The contraction of one block, on buffers of its own."""
        weights_first = self.problem.kind == "conv2d_weight_gradient"
        left = self._buffer(self.problem.left, "left")
        right = self._buffer(self.problem.right, "right", diagonal=not weights_first)
        product = self._buffer(self.problem.product, "product", diagonal=weights_first)
        axes = tuple(tirx.Var(f"x{i}", "int64") for i in range(len(product.shape)))
        return dataclasses.replace(
            self.problem,
            left=left,
            right=right,
            product=product,
            groups=1,
            shape=tir.extents(product),
            outputs=(Output(product, axes, axes, tirx.BufferLoad(product, list(axes))),),
        )

    def copy_in(self, one: Problem, block: Index) -> list[tirx.Stmt]:
        """Both operands of one block."""
        right = self._columns if one.kind == "conv2d_weight_gradient" else self._diagonal
        return [
            self._columns(self.problem.left, one.left, block),
            right(self.problem.right, one.right, block),
        ]

    def copy_out(self, one: Problem, block: Index) -> tirx.Stmt:
        """The product of one block, through the epilogue, to the outputs."""
        *outer, features = tir.extents(one.product)
        if one.kind != "conv2d_weight_gradient":

            def row(position: Index) -> tirx.Stmt:
                return self._finish(one, tir.unravel(position, outer), block * features, position * features, features)

            return self._rows(math.prod(outer), features, row)
        rows, columns, channels = outer
        own, part = channels // self.merged, features // self.merged

        def diagonal(position: Index) -> tirx.Stmt:
            r, s, c = tir.unravel(position, (rows, columns, own))
            return tir.sequence(
                [
                    self._finish(
                        one,
                        (r, s, c),
                        block * features + group * part,
                        ((r * columns + s) * channels + group * own + c) * features + group * part,
                        part,
                    )
                    for group in range(self.merged)
                ]
            )

        return self._rows(rows * columns * own, features, diagonal)

    def _finish(self, one: Problem, outer: tuple[Index, ...], column: Index, place: Index, width: int) -> tirx.Stmt:
        def element(at: Index) -> tirx.Stmt:
            return self.problem.finish((*outer, column + at), lambda: tir.load(one.product, place + at))

        return tir.lanewise(width, self._lanes, element)

    def _columns(self, whole: tirx.Buffer, part: tirx.Buffer, block: Index) -> tirx.Stmt:
        (*outer, width), total = tir.extents(part), int(whole.shape[-1])

        def row(position: Index) -> tirx.Stmt:
            return copy(whole, position * total + block * width, part, position * width, width, self._lanes)

        return self._rows(math.prod(outer), width, row)

    def _diagonal(self, whole: tirx.Buffer, part: tirx.Buffer, block: Index) -> tirx.Stmt:
        rows, columns, channels, width = tir.extents(part)
        own, features, total = channels // self.merged, width // self.merged, int(whole.shape[-1])

        def row(position: Index) -> tirx.Stmt:
            tap, c = position // own, position % own
            begin = (tap * own + c) * total + block * width
            statements = []
            for group in range(self.merged):
                place = (tap * channels + group * own + c) * width
                before, after = group * features, (self.merged - 1 - group) * features
                statements += [
                    fill(part, place, before, self._lanes),
                    copy(whole, begin + before, part, place + before, features, self._lanes),
                    fill(part, place + before + features, after, self._lanes),
                ]
            return tir.sequence(statements)

        return self._rows(rows * columns * own, width * self.merged, row)

    def _rows(self, count: int, width: int, row: Callable[[Index], tirx.Stmt]) -> tirx.Stmt:
        is_parallel = self._threads > 1 and 8 * count * width >= PARALLEL_BYTES
        return tir.loop(count, row, "row", tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL)

    def _buffer(self, whole: tirx.Buffer, name: str, *, diagonal: bool = False) -> tirx.Buffer:
        *outer, width = tir.extents(whole)
        shape = [*outer, width // self.problem.groups * self.merged]
        if diagonal:
            shape[-2] *= self.merged
        return tirx.decl_buffer([tirx.IntImm("int64", extent) for extent in shape], "float32", f"group_{name}")
