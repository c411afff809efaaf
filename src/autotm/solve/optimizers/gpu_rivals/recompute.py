"""Recomputation by segments: everything stays in fast memory, and what was dropped there is computed again."""

from __future__ import annotations

import time
from typing import ClassVar

from autotm.layout import Blocks, pack_blocks
from autotm.model.plan import RECOMPUTE, Stay
from autotm.model.step import Graph, Tier
from autotm.solve.bases import Rival, Ruled
from autotm.solve.problem import Problem
from autotm.solve.rivals import fastest, leanest_of, segmentations


class Recompute(Rival):
    """The fastest of `solve.rivals.segmentations` whose addresses fit the limit.

    Where none fits, that which needs least memory. Packing is tried for as long as a solver would be; what is left
    then gets quick addresses only.
    """

    name: ClassVar[str] = RECOMPUTE

    def made(self, problem: Problem) -> Ruled:
        """A stay for every tensor, and for every one that is computed again."""
        graph, profile = fastest(problem), problem.profile
        end_s = time.perf_counter() + problem.options.time_limit_s
        tried = list(segmentations(graph))
        for one in sorted(tried, key=lambda each: (each.repeated_us(profile), each.count)):
            if problem.limit.is_unlimited or one.most_bytes <= problem.limit_bytes:
                offsets = _packed(one.step, None if problem.limit.is_unlimited else problem.limit_bytes, end_s)
                if offsets is not None:
                    return Ruled(graph, list(offsets), calls=one.calls, offsets=offsets)
        leanest = leanest_of(tried)
        return Ruled(graph, _stays(leanest.step), calls=leanest.calls)


def _stays(step: Graph) -> list[Stay]:
    stays = (Stay(one.name, Tier.DRAM, one.live.start, one.live.stop) for one in step.movable)
    return sorted(stays, key=lambda stay: stay.order)


def _packed(step: Graph, limit_bytes: int | None, end_s: float) -> dict[Stay, int] | None:
    """An offset for every tensor; None where none were found within the limit."""
    stays = _stays(step)
    blocks = Blocks.of(step, stays)
    offsets = pack_blocks(blocks, limit_bytes, end_s)
    if limit_bytes is not None and blocks.height(offsets) > limit_bytes:
        return None
    return dict(zip(stays, offsets.tolist(), strict=True))
