"""First touch: each tensor goes to fast memory if there is room when it is born, and stays where it is.

What an operating system does with two memory nodes, and AutoTM's baseline (Hildebrand et al., ASPLOS 2020): no profile
is asked, nothing moves. Room is that of a best-fit allocator, so fragments count as they would there.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from typing import ClassVar

from autotm.model.files import BadInputError
from autotm.model.plan import Status, Stay
from autotm.model.step import Tier
from autotm.solve.bases import Heap, Optimizer, Placement
from autotm.solve.problem import Choices, Flow, Problem, flows_for_life


class FirstTouch(Optimizer):
    """One pass over the step in execution order."""

    name: ClassVar[str] = "numa"

    def choices(self, problem: Problem) -> Choices:
        """One gadget per tensor; kernels keep the implementation they have.

        Raises:
            BadInputError: kernels need fast operands, which first touch cannot promise.
        """
        if problem.options.fast_operands_only:
            raise BadInputError("optimizer 'numa': kernels here need fast operands; use 'synchronous'")
        return Choices(flows_for_life(problem, problem.graph.movable))

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Give every tensor its tier when it is born; there is nothing to search."""
        started, flows = time.perf_counter(), choices.flows
        # A ratio 0:n is no limit: there fragments push nothing out.
        unlimited = problem.limit.slow == 0
        room = sum(flow.size_bytes for flow in flows) if unlimited else problem.limit_bytes
        stays = [
            Stay(flow.tensor, Tier.DRAM if is_fast else Tier.PMEM, flow.starts[0], flow.stops[0])
            for flow, is_fast in zip(flows, _first_touch(flows, room), strict=True)
        ]
        elapsed_s = time.perf_counter() - started
        return Placement(stays, (), {}, None, None, Status.NOT_OPTIMIZED, elapsed_s, 0.0)


def _first_touch(flows: Sequence[Flow], room_bytes: int) -> list[bool]:
    """Whether each tensor found room: those that must be fast before the step, the others when they are born."""
    heap = Heap(room_bytes)
    is_fast = [False] * len(flows)
    offsets: dict[int, int] = {}
    births = sorted(range(len(flows)), key=lambda index: (not flows[index].must[0], flows[index].starts[0]))
    deaths: list[tuple[int, int]] = []
    for index in births:
        flow = flows[index]
        while deaths and deaths[0][0] <= flow.starts[0] and not flow.must[0]:
            dead = deaths.pop(0)[1]
            heap.free(offsets.pop(dead), flows[dead].size_bytes)
        offset = heap.take_best(flow.size_bytes) if flow.may[0] else None
        if offset is None and not flow.must[0]:
            continue
        is_fast[index] = True
        if offset is not None:
            offsets[index] = offset
            insort(deaths, (flow.stops[0], index))
    return is_fast
