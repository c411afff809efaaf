"""Offsets for both pools: the best of several greedy orders, refined by moving up what sticks out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autotm.layout.first_fit import Blocks, Ints, first_fit
from autotm.layout.search import Budget, lower
from autotm.model.graph import Graph
from autotm.model.plan import Plan, Stay
from autotm.model.program import Layout
from autotm.model.tier import Tier

_CLOSE_ENOUGH = 1.0005
_SEARCH_PLACEMENTS = 30_000
"""About half a second."""


def pack(graph: Graph, plan: Plan) -> Layout:
    """An offset for every stay of the plan, 64-byte aligned.

    Two stays of one tier may share bytes exactly when their spans [start, end) do not meet. That suffices at the
    boundary before kernel b: moves to slow memory come first and read fast stays that end at b, before moves to fast
    memory or the kernel overwrite them; what moves to slow memory overwrite belongs to stays that ended at b, which no
    move reads, since a move to fast memory reads a stay that holds during b.
    """
    offsets = np.zeros(len(plan.stays), np.int64)
    heights = {}
    for tier in Tier:
        members = [index for index, stay in enumerate(plan.stays) if stay.tier is tier]
        blocks = blocks_of(graph, [plan.stays[index] for index in members])
        packed = pack_blocks(blocks)
        offsets[members] = packed
        heights[tier] = height(blocks, packed)
    return Layout(plan.stays, tuple(offsets.tolist()), heights[Tier.DRAM], heights[Tier.PMEM])


def blocks_of(graph: Graph, stays: Sequence[Stay]) -> Blocks:
    """The stays as blocks of their tensors' allocated bytes."""
    sizes = [graph.by_name[stay.tensor].allocated_bytes for stay in stays]
    starts = [stay.start for stay in stays]
    ends = [stay.end for stay in stays]
    return Blocks(np.array(sizes, np.int64), np.array(starts, np.int64), np.array(ends, np.int64))


def height(blocks: Blocks, offsets: Ints) -> int:
    """Bytes that a pool needs for these offsets."""
    return int((offsets + blocks.sizes).max()) if len(blocks) else 0


def pack_blocks(blocks: Blocks) -> Ints:
    """The lowest packing found; stops early within 0.05 % of the live peak."""
    target = int(blocks.peak_bytes * _CLOSE_ENOUGH)
    budget = Budget(_SEARCH_PLACEMENTS)
    offsets = np.zeros(len(blocks), np.int64)
    for members in _components(blocks):
        part = Blocks(blocks.sizes[members], blocks.starts[members], blocks.ends[members])
        offsets[members] = _pack_component(part, target, budget)
    return offsets


def _components(blocks: Blocks) -> Iterator[list[int]]:
    """Groups of blocks whose spans never meet those of another group: each can use the whole pool."""
    group: list[int] = []
    end = 0
    for block in np.argsort(blocks.starts, kind="stable").tolist():
        if group and blocks.starts[block] >= end:
            yield group
            group = []
        group.append(block)
        end = max(end, int(blocks.ends[block]))
    if group:
        yield group


def _pack_component(blocks: Blocks, target: int, budget: Budget) -> Ints:
    best: tuple[int, Ints, list[int]] | None = None
    for order in _orders(blocks):
        offsets = first_fit(blocks, order)
        if best is None or height(blocks, offsets) < best[0]:
            best = (height(blocks, offsets), offsets, order)
        if best[0] <= target:
            return best[1]
    assert best is not None
    return lower(blocks, best[2], best[1], target, budget)


def _orders(blocks: Blocks) -> Iterator[list[int]]:
    """Greedy orders, the ones that win most often first."""
    sizes, starts, ends = blocks.sizes, blocks.starts, blocks.ends
    spans = ends - starts
    for keys in (
        (starts, -spans, -sizes),
        (starts, -spans, -(sizes * spans)),
        (starts, -sizes, -spans),
        (starts, -sizes, -(spans // 16)),
        (starts, -np.round(sizes * np.sqrt(spans)).astype(np.int64)),
        (starts, -sizes, -_pressure(blocks)),
        (-sizes, starts),
        (-sizes, -ends),
    ):
        yield np.lexsort(keys).tolist()


def _pressure(blocks: Blocks) -> Ints:
    """For each block the most live bytes during its span: crowded kernels first."""
    change = np.zeros(int(blocks.ends.max()) + 1, np.int64)
    np.add.at(change, blocks.starts, blocks.sizes)
    np.add.at(change, blocks.ends, -blocks.sizes)
    live = change.cumsum()
    crowds = [live[start:end].max() for start, end in zip(blocks.starts, blocks.ends, strict=True)]
    return np.array(crowds, np.int64)
