"""Offsets for both pools: quick packings on a skyline first, branch and bound for what resists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from autotm.layout.blocks import Blocks, Ints
from autotm.layout.branch import packings
from autotm.layout.skyline import skyline
from autotm.model.plan import Layout, Plan
from autotm.model.step import Graph, Limit, Tier

_CLOSE = 1.0005
"""This share of the live peak is close enough to stop."""
_WIDER = 1.01
"""Without a limit to keep, the share of the live peak that is tried next."""


Place = Callable[[Blocks, int | None], Ints]
"""Offsets of blocks for a limit in bytes."""


def pack(graph: Graph, plan: Plan, place: Place | None = None) -> Layout:
    """An offset for every stay of the plan, 64-byte aligned: those that the plan states, or else new ones.

    Two stays of one tier may share bytes exactly when their spans [start, end) do not meet. That suffices at the
    boundary before kernel b. A stay that ends at b is still read there by asynchronous moves, which are waited for
    before anything else happens, and, if it is fast, by blocking moves to slow memory. Those write stays in slow memory
    that begin at b; what they overwrite belongs to slow stays that ended at b, which no move reads any more, since a
    blocking move to fast memory reads a stay that holds during b. Only then come blocking moves to fast memory,
    asynchronous moves that start, and the kernel. Nothing writes a stay before it begins or after it has ended: an
    asynchronous move's destination stay begins when the move starts and holds when it is complete.

    A plan for memory behind a cache, or whose pages Linux places, has decided its addresses itself. `place` is what
    packs, if not `pack_blocks`.
    """
    if (pool := plan.one_pool) is not None:
        return Layout(plan.stays, pool.offsets, 0, pool.size_bytes)
    chosen = plan.step_of(graph)
    is_unlimited = Limit.parse(plan.limit).is_unlimited
    limits = {Tier.DRAM: None if is_unlimited else plan.dram_limit_bytes, Tier.PMEM: None}
    offsets = np.array(plan.offsets or [0] * len(plan.stays), np.int64)
    heights = {}
    for tier in Tier:
        members = [index for index, stay in enumerate(plan.stays) if stay.tier is tier]
        blocks = Blocks.of(chosen, [plan.stays[index] for index in members])
        if not plan.offsets:
            offsets[members] = (place or pack_blocks)(blocks, limits[tier])
        heights[tier] = blocks.height(offsets[members])
    return Layout(plan.stays, tuple(offsets.tolist()), heights[Tier.DRAM], heights[Tier.PMEM])


def pack_blocks(blocks: Blocks, limit_bytes: int | None = None, end_s: float = math.inf) -> Ints:
    """Offsets within 0.05 % of the live peak; else within the limit; else the lowest found.

    Once `time.perf_counter` has reached `end_s`, the quick packings are all that is tried.
    """
    close = int(blocks.peak_bytes * _CLOSE)
    wider = [int(blocks.peak_bytes * _WIDER)] if limit_bytes is None else [limit_bytes]
    targets = [close, *(target for target in wider if target > close)]
    if limit_bytes is not None:
        targets = [min(target, max(limit_bytes, blocks.peak_bytes)) for target in targets]
    offsets = np.zeros(len(blocks), np.int64)
    for members in blocks.groups():
        offsets[members] = _pack_group(blocks[members], targets, end_s)
    return offsets


def can_pack(blocks: Blocks, limit_bytes: int, end_s: float = math.inf) -> bool:
    """Whether offsets within the limit are found; quicker than to look for the lowest ones."""
    groups = (blocks[members] for members in blocks.groups())
    return all(group.height(_pack_group(group, [limit_bytes], end_s)) <= limit_bytes for group in groups)


def _pack_group(blocks: Blocks, targets: list[int], end_s: float) -> Ints:
    """The first packing within the first target that can be met; else the lowest."""
    best, lowest = np.zeros(0, np.int64), None
    for target in targets:
        for offsets in _candidates(blocks, target, end_s, is_first=target == targets[0]):
            height = blocks.height(offsets)
            if lowest is None or height < lowest:
                best, lowest = offsets, height
            if lowest <= target:
                return best
    return best


def _candidates(blocks: Blocks, target_bytes: int, end_s: float, *, is_first: bool) -> Iterator[Ints]:
    if is_first:
        yield from quick_packings(blocks)
    yield from packings(blocks, target_bytes, end_s)


def quick_packings(blocks: Blocks) -> Iterator[Ints]:
    """Offsets on a skyline, in which long lives go first, or large areas."""
    return (skyline(blocks, priority) for priority in _priorities(blocks))


def _priorities(blocks: Blocks) -> Iterator[npt.NDArray[np.float64]]:
    """What the lowest stretch of the skyline prefers: long lives first, or large areas."""
    sizes, spans = blocks.sizes.astype(np.float64), (blocks.ends - blocks.starts).astype(np.float64)
    yield spans + sizes / (sizes.max() + 1)
    yield sizes * spans
