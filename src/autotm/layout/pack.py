"""Offsets for both pools: the best of several greedy packings.

Groups that resist are packed again and again in an order that changes: what ended up too high comes sooner the next
time (squeaky wheel optimization: Joslin and Clements, 1999).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from autotm.layout.first_fit import Blocks, Ints, first_fit
from autotm.layout.skyline import skyline
from autotm.model.graph import Graph
from autotm.model.plan import Plan, Stay
from autotm.model.program import Layout
from autotm.model.tier import Tier

_CLOSE_ENOUGH = 1.0005
_QUICK, _GOOD_ENOUGH = 5, 1.004
"""After so many packings, this share of the live peak is close enough."""
_LATER, _LATER_WORK = 60, 100_000_000
"""Later packings of a group, those that learn from the ones before, at most; and that times the square of its blocks,
which is about half a second."""
_SOONER = (0.5, 0.4, 0.4, 0.4)
"""What the rank of a block that ends up too high is multiplied by, in each of the first orders."""


def pack(graph: Graph, plan: Plan) -> Layout:
    """An offset for every stay of the plan, 64-byte aligned.

    Two stays of one tier may share bytes exactly when their spans [start, end) do not meet. That suffices at the
    boundary before kernel b. A stay that ends at b is still read there by asynchronous moves, which are waited for
    before anything else happens, and, if it is fast, by blocking moves to slow memory. Those write stays in slow memory
    that begin at b; what they overwrite belongs to slow stays that ended at b, which no move reads any more, since a
    blocking move to fast memory reads a stay that holds during b. Only then come blocking moves to fast memory,
    asynchronous moves that start, and the kernel. Nothing writes a stay before it begins or after it has ended: an
    asynchronous move's destination stay begins when the move starts and holds when it is complete.

    A plan for memory behind a cache has decided its addresses itself.
    """
    if plan.cached is not None:
        return Layout(plan.stays, plan.cached.offsets, 0, plan.cached.size_bytes)
    chosen = graph.computed_by(plan.implementations)
    offsets = np.zeros(len(plan.stays), np.int64)
    heights = {}
    for tier in Tier:
        members = [index for index, stay in enumerate(plan.stays) if stay.tier is tier]
        blocks = blocks_of(chosen, [plan.stays[index] for index in members])
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
    """The lowest packing found; stops early within 0.05 % of the live peak, later within 0.4 %."""
    peak_bytes = blocks.peak_bytes
    offsets = np.zeros(len(blocks), np.int64)
    for members in _components(blocks):
        part = Blocks(blocks.sizes[members], blocks.starts[members], blocks.ends[members])
        offsets[members] = _pack_component(part, peak_bytes)
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


def _pack_component(blocks: Blocks, peak_bytes: int) -> Ints:
    close, good = int(peak_bytes * _CLOSE_ENOUGH), int(peak_bytes * _GOOD_ENOUGH)
    best: Ints | None = None
    for number, offsets in enumerate(_candidates(blocks, close), start=1):
        if best is None or height(blocks, offsets) < height(blocks, best):
            best = offsets
        if height(blocks, best) <= (close if number < _QUICK else good):
            break
    assert best is not None
    return best


def _candidates(blocks: Blocks, target: int) -> Iterator[Ints]:
    """Greedy packings, the ones that win most often first; then first-fit ones that learn from those before."""
    for priority in _priorities(blocks):
        yield skyline(blocks, priority)
    ranks, latest = [], []
    for order in _orders(blocks):
        offsets = first_fit(blocks, order)
        yield offsets
        rank = np.empty(len(blocks))
        rank[order] = np.arange(len(blocks))
        ranks.append(rank)
        latest.append(offsets)
    for attempt in range(min(_LATER, _LATER_WORK // len(blocks) ** 2)):
        which = attempt % len(_SOONER)
        ranks[which][latest[which] + blocks.sizes > target] *= _SOONER[which]
        latest[which] = first_fit(blocks, np.argsort(ranks[which], kind="stable").tolist())
        yield latest[which]


def _priorities(blocks: Blocks) -> Iterator[npt.NDArray[np.float64]]:
    """What the lowest stretch of the skyline prefers: long lives first, or large areas, or what lies between."""
    sizes, spans = blocks.sizes.astype(np.float64), (blocks.ends - blocks.starts).astype(np.float64)
    yield spans + sizes / (sizes.max() + 1)
    yield sizes * spans
    yield np.sqrt(sizes) * spans
    yield sizes * np.sqrt(spans)
    yield sizes


def _orders(blocks: Blocks) -> Iterator[list[int]]:
    sizes, starts, ends = blocks.sizes, blocks.starts, blocks.ends
    spans = ends - starts
    for keys in (
        (starts, -spans, -sizes),
        (starts, -spans, -(sizes * spans)),
        (starts, -sizes, -spans),
        (starts, -sizes, -_pressure(blocks)),
        (-sizes, starts),
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
