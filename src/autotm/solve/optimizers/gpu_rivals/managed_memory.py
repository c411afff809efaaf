"""Memory that the GPU's driver moves by page faults (cudaMallocManaged): nothing is planned, the baseline of figure 12.

All fast here means in the one pool, at the addresses of a plain framework; the run leaves the driver as much device
memory as the limit says. What faults cost is not predicted: the objective is that of the kernels.
"""

from __future__ import annotations

from typing import ClassVar

from autotm.model.plan import MANAGED_MEMORY, Stay
from autotm.model.step import Tier
from autotm.solve.bases import Rival, Ruled, first_fit
from autotm.solve.problem import Problem
from autotm.solve.rivals import fastest


class ManagedMemory(Rival):
    """The plain step in one pool."""

    name: ClassVar[str] = MANAGED_MEMORY

    def made(self, problem: Problem) -> Ruled:
        """Every tensor for life."""
        graph = fastest(problem)
        places, _ = first_fit(graph)
        stays = {one.name: Stay(one.name, Tier.DRAM, one.live.start, one.live.stop) for one in graph.movable}
        return Ruled(graph, list(stays.values()), offsets={stays[name]: offset for name, offset in places.items()})
