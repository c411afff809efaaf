"""Sums that wait in memory: a reduction taken in blocks, each of which adds to what those before it left.

They wait in the result itself where that is the only output, else in a workspace: for the whole result, or for a
portion of it at a time, which reads the operands once for each portion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from autotm.kernels.code import CHAIN_STEPS, Cut, Index, TargetInfo, tir
from autotm.kernels.schedules.contraction.parts.problem import Problem
from autotm.kernels.schedules.contraction.parts.tile import RegisterTile


@dataclass(frozen=True)
class Block:
    """A block of pixel rows [first, last), and where its sums go: into `partial` until the last block."""

    first: Index
    last: Index
    partial: tirx.Buffer | None
    base: Index
    is_first: tirx.Expr | bool
    is_last: tirx.Expr | bool


def pixel_blocks(lines: int, columns: int, line_bytes: int, info: TargetInfo) -> int:
    """Blocks of pixel rows: each fits half the second-level cache and makes no long chain of sums."""
    cache_blocks = -(-2 * lines * line_bytes // info.l2_bytes)
    chain_blocks = -(-lines * columns // CHAIN_STEPS)
    return min(lines, max(cache_blocks, chain_blocks))


def each_block(blocks: int, lines: int, partial: tirx.Buffer | None, body: Callable[[Block], tirx.Stmt]) -> tirx.Stmt:
    """Loop over the blocks of all pixel rows."""
    return tir.loop(
        blocks,
        lambda index: body(Block(*tir.share(index, blocks, lines), partial, 0, index == 0, index == blocks - 1)),
        "block",
    )


def partial_sums(problem: Problem, size: int, blocks: int) -> tuple[tirx.Buffer | None, tuple[tirx.Buffer, ...]]:
    """Where sums wait between blocks, and the workspace this needs: none if the product is the output."""
    if blocks == 1:
        return None, ()
    if problem.plain:
        return problem.product, ()
    buffer = tir.workspace(size, "partial_sums")
    return buffer, (buffer,)


def portion_of(unit_bytes: int, info: TargetInfo) -> int:
    """Units of the result whose sums together take no more than a quarter of the second-level cache."""
    return max(1, info.l2_bytes // 4 // unit_bytes)


def each_portion(
    span: tuple[Index, Index], most: int, size: int, body: Callable[[Index, Index], tirx.Stmt]
) -> tirx.Stmt:
    """`body(first, last)` for portions of at most `size` units of a span, which has at most `most` of them."""
    first, last = span

    def portion(number: Index) -> tirx.Stmt:
        begin = first + number * size
        return tir.bind_all((begin, tirx.min(tir.number(begin + size), tir.number(last))), "begin end", body)

    return tir.loop(-(-most // size), portion, "portion")


def pick_features(
    cut: Cut, tile: Index, features: int, lanes: int, body: Callable[[Index, int], tirx.Stmt]
) -> tirx.Stmt:
    """The body for feature tile `tile`, given its first feature and its width, a constant in each branch."""
    whole = tir.pick(cut, tile, lambda k, size: body(k * lanes, size * lanes)) if features >= lanes else None
    tail = features % lanes
    if not tail:
        return whole
    size = cut.size if cut.longer == cut.count else cut.size - 1
    end = body(features - (size - 1) * lanes - tail, (size - 1) * lanes + tail)
    return end if cut.count == 1 else tir.choose(tile == cut.count - 1, end, whole)


def sum_block(
    tile: RegisterTile,
    block: Block,
    problem: Problem,
    reduce: tirx.Stmt,
    place: Callable[[int, int], Index],
    coordinates: Callable[[int, Index], tuple[Index, ...]],
    waiting: Callable[[int, int], Index] | None = None,
) -> tirx.Stmt:
    """Sums of one block in registers, then added to those before it; the last block runs the epilogue.

    Sums lie at `place` of the result, and wait at `waiting` of the partial sums, the same place if not given.
    """
    waits = waiting or place
    nothing = tir.sequence([])
    gather = save = nothing
    if block.partial is not None:
        gather = tile.add(lambda m, o, n: tir.load(block.partial, block.base + waits(m, o), n))
        save = tile.save(block.partial, lambda m, o: block.base + waits(m, o))
    return tir.sequence(
        [
            tile.declare(),
            tile.clear(),
            reduce,
            tir.choose(block.is_first, nothing, gather),
            tir.choose(block.is_last, tile.finish(problem, coordinates, place), save),
        ]
    )


def sum_chains(
    tile: RegisterTile, taps: int, run: int, chain: Callable[[Index, Index, Index], tirx.Stmt]
) -> tuple[list[tirx.Stmt], RegisterTile]:
    """All products of `taps` runs, and the tile that holds their sum in the end.

    `chain(tap, first, last)` adds steps [first, last) of a run to `tile`. Where there are many, chains of about
    `CHAIN_STEPS` are added to a second tile one by one.
    """
    if taps * run <= 2 * CHAIN_STEPS:
        whole = [tir.loop(taps, lambda tap: chain(tap, 0, run), "tap")] if taps * run else []
        return [tile.declare(), tile.clear(), *whole], tile
    total = RegisterTile(tile.rows, tile.width, tile.lanes)
    links = -(-run // CHAIN_STEPS)

    def link(tap: Index, index: Index) -> tirx.Stmt:
        return tir.sequence([tile.clear(), chain(tap, *tir.share(index, links, run)), total.add(tile.sums.get)])

    each = tir.loop(taps, lambda tap: tir.loop(links, lambda index: link(tap, index), "link"), "tap")
    return [tile.declare(), total.declare(), total.clear(), each], total
