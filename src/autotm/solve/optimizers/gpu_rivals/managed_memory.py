"""Memory that the GPU's driver moves by page faults (cudaMallocManaged): nothing is planned, the baseline of figure 12.

All fast here means in the one pool, at the addresses of a plain framework; the run leaves the driver as much device
memory as the limit says. What faults cost is not predicted: the objective is that of the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from autotm.model.plan import MANAGED_MEMORY, Move, Plan, Stay
from autotm.model.step import Graph, Tier
from autotm.solve.bases import Placement, Rival, first_fit
from autotm.solve.problem import Problem
from autotm.solve.rivals import fastest


class ManagedMemory(Rival):
    """The plain step in one pool."""

    name: ClassVar[str] = MANAGED_MEMORY

    def made(self, problem: Problem) -> tuple[Graph, list[Stay], list[Move]]:
        """Every tensor for life."""
        graph = fastest(problem)
        return graph, [Stay(one.name, Tier.DRAM, one.live.start, one.live.stop) for one in graph.movable], []

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        """The plan with its addresses."""
        plan = super()._plan(problem, placement)
        offsets, _ = first_fit(problem.graph.computed_by(plan.implementations))
        return replace(plan, offsets=tuple(offsets[stay.tensor] for stay in plan.stays))
