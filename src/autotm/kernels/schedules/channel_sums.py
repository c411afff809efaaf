"""Generated sums over all rows, several for each channel: batch norm's and a bias's gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import s_tir, te, tirx

from autotm.kernels import tir
from autotm.kernels.target import PARALLEL_BYTES, TargetInfo
from autotm.kernels.tir import Code, Index, parameters, replace_body

# Sums over all rows of a (rows, channels) matrix, several for each channel, in one pass at the memory's speed.
#
# Loops: parts of the rows, shared among the threads; in a part, blocks of rows that stay in the first-level cache; in a
# block, groups of channels, whose sums stay in registers while the rows of the block are added. A block's sums are
# added to its part's, which lie in a workspace, and last the parts' to one another. So no level adds more than about
# sqrt(rows) terms one after the other, and the order never depends on which thread was first.

_BLOCK_BYTES = 16 << 10  # Half of a first-level cache of 32 KiB.
_LEAST_ROWS, _MOST_ROWS = 16, 64  # Rows of a block, also where fewer fit or more would.
_GROUP_VECTORS = 8
"""Long runs of a row are read faster than short ones; half of the registers stay free for the terms."""


Terms = Callable[[Index, Index, int], list[tirx.Expr]]
"""(row, channel, lanes) -> the vector of terms of each sum."""
Finish = Callable[[Index, int, list[tirx.Expr]], tirx.Stmt]
"""(channel, lanes, the vector of each sum) -> what is stored."""


def replace_by_sums(
    sch: s_tir.Schedule,
    info: TargetInfo,
    threads: int,
    operands: list[tirx.Buffer],
    terms: Terms,
    finish: Finish,
    count: int = 2,
    before: tirx.Stmt | None = None,
) -> None:
    """Let the function in `sch` compute `count` sums of each channel over all rows, after `before`.

    `operands` are the matrices that the terms read, all of one shape (..., channels).
    """
    rows, channels = matrix(operands[0])
    block_rows = min(max(_BLOCK_BYTES // (4 * channels * len(operands)), _LEAST_ROWS), _MOST_ROWS)
    blocks = -(-rows // block_rows)
    parts = min(blocks, -(-math.isqrt(blocks) // threads) * threads)
    partial = tir.workspace(parts * count * channels, "partial_sums")

    def waiting(part: Index, c: Index) -> list[Index]:
        return [(part * count + number) * channels + c for number in range(count)]

    def sum_part(part: Index) -> tirx.Stmt:
        first, last = tir.share(part, parts, blocks)

        def clear(c: Index, lanes: int) -> tirx.Stmt:
            return tir.sequence([tir.store(partial, at, tir.zeros(lanes), lanes) for at in waiting(part, c)])

        def add(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
            pairs = zip(waiting(part, c), sums, strict=True)
            return tir.sequence(
                [tir.store(partial, at, tir.load(partial, at, lanes) + value, lanes) for at, value in pairs]
            )

        def sum_block(block: Index) -> tirx.Stmt:
            return _each_group(channels, count, info, tir.share(block, blocks, rows), terms, add)

        blocks_of = tir.loop(last - first, sum_block, "block", start=first)
        return tir.sequence([tir.spans(channels, info.lanes, clear), blocks_of])

    def of_part(part: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        return [tir.load(partial, at, lanes) for at in waiting(part, c)]

    is_parallel = threads > 1 and 4 * rows * channels * len(operands) >= PARALLEL_BYTES
    summed = tir.parallel(parts, sum_part, "part", when=is_parallel)
    together = _each_group(channels, count, info, (0, parts), of_part, finish)
    first = [before] if before is not None else []
    replace_body(sch, Code(tir.sequence([*first, summed, together]), (partial,)))


def _each_group(
    channels: int, count: int, info: TargetInfo, span: tuple[Index, Index], terms: Terms, done: Finish
) -> tirx.Stmt:
    """Generate code that, for each group of channels, adds the terms over a span and hands the sums on."""
    width = min(_GROUP_VECTORS, info.registers // (2 * count)) * info.lanes
    first, last = span

    def group(channel: Index, breadth: int) -> tirx.Stmt:
        sums = tir.Registers(count, breadth)
        vectors = tir.segments(breadth, info.lanes)
        clear = [sums.set(i, o, tir.zeros(n), n) for i in range(count) for o, n in vectors]

        def step(row: Index) -> tirx.Stmt:
            return tir.sequence(
                [
                    sums.set(number, offset, sums.get(number, offset, lanes) + term, lanes)
                    for offset, lanes in vectors
                    for number, term in enumerate(terms(row, channel + offset, lanes))
                ]
            )

        results = [done(channel + o, n, [sums.get(i, o, n) for i in range(count)]) for o, n in vectors]
        return tir.sequence([sums.declare(), *clear, tir.loop(last - first, step, "row", start=first), *results])

    whole, rest = divmod(channels, width)
    groups = [tir.loop(whole, lambda index: group(index * width, width), "group")] if whole else []
    return tir.sequence([*groups, *([group(whole * width, rest)] if rest else [])])


def matrix(x: tirx.Buffer) -> tuple[int, int]:
    """Return the rows and channels of an activation."""
    *leading, channels = tir.extents(x)
    return math.prod(leading), channels


# The two reductions of batch norm as generated code: each reads its operands once.
#
# The variance is that of the deviations from a rough mean, of a few rows, so that nothing cancels: with the sums s
# and t of d = x - rough and d², the mean is rough + s/n and the variance t/n - (s/n)² (Chan, Golub and LeVeque,
# 1983).

_ROUGH_ROWS = 8  # Rows whose mean is the rough one.


def schedule_statistics(sch: s_tir.Schedule, main: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of `batch_norm.statistics`."""
    x, mean, inverse = parameters(sch)
    rows, channels = matrix(x)
    epsilon = float(sch.get(main).annotations["epsilon"])

    def rough_mean(c: Index, lanes: int) -> tirx.Stmt:
        count = min(rows, _ROUGH_ROWS)
        samples = (tir.load(x, sample * rows // count * channels + c, lanes) for sample in range(count))
        total = sum(samples, tir.zeros(lanes))
        return tir.store(mean, c, total * tir.constant(1 / count, lanes), lanes)

    def terms(row: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        deviation = tir.load(x, row * channels + c, lanes) - tir.load(mean, c, lanes)
        return [deviation, deviation * deviation]

    def finish(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
        offset, square = (value * tir.constant(1 / rows, lanes) for value in sums)
        variance = tirx.max(square - offset * offset, tir.zeros(lanes))
        deviation = tirx.sqrt(variance + tir.constant(epsilon, lanes))
        return tir.sequence(
            [
                tir.store(inverse, c, tir.constant(1.0, lanes) / deviation, lanes),
                tir.store(mean, c, tir.load(mean, c, lanes) + offset, lanes),
            ]
        )

    replace_by_sums(sch, info, threads, [x], terms, finish, before=tir.spans(channels, info.lanes, rough_mean))


def schedule_gradient_sums(sch: s_tir.Schedule, _main: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of `batch_norm.gradient_sums`."""
    dy, x, mean, inverse, dgamma, dbeta = parameters(sch)
    _, channels = matrix(x)

    def terms(row: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        slope = tir.load(dy, row * channels + c, lanes)
        return [slope, slope * (tir.load(x, row * channels + c, lanes) - tir.load(mean, c, lanes))]

    def finish(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
        total, product = sums
        return tir.sequence(
            [tir.store(dgamma, c, product * tir.load(inverse, c, lanes), lanes), tir.store(dbeta, c, total, lanes)]
        )

    replace_by_sums(sch, info, threads, [dy, x], terms, finish)


# The gradient of a bias: the sum over all axes but the last.


def bias_gradient(dy: te.Tensor) -> te.Tensor:
    """Sum each channel, (..., channels) to (channels,); the code is generated, known by the block's name."""
    *leading, channels = tir.extents(dy)
    axes = [te.reduce_axis((0, extent)) for extent in leading]
    return te.compute((channels,), lambda c: te.sum(dy(*axes, c), axis=axes), name="bias_gradient")


def schedule_bias_gradient(sch: s_tir.Schedule, _main: s_tir.schedule.SBlockRV, info: TargetInfo, threads: int) -> None:
    """Replace the body of `bias_gradient`."""
    dy, total = parameters(sch)
    _, channels = matrix(dy)

    def terms(row: Index, c: Index, lanes: int) -> list[tirx.Expr]:
        return [tir.load(dy, row * channels + c, lanes)]

    def finish(c: Index, lanes: int, sums: list[tirx.Expr]) -> tirx.Stmt:
        return tir.store(total, c, sums[0], lanes)

    replace_by_sums(sch, info, threads, [dy], terms, finish, count=1)
