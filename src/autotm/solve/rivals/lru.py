"""Paging of whole tensors: what was used least recently leaves the device when there is no room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from autotm.model.plan import Engine
from autotm.model.step import Graph
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, copy_and_wait, fastest, simulated


def page_tensors(problem: Problem) -> Simulated:
    """Demand paging: nothing is known of the kernels to come, so all copies are waited for.

    Before a kernel its operands are brought in, and room for them and for its results is made. A tensor is written
    once, so it is *dirty* until its first copy to the host, and dropped without one afterwards; what nobody will read
    is freed. Room is counted in bytes, without fragments.
    """
    graph = fastest(problem)
    pager = _Pager(problem, graph)
    for index, kernel in enumerate(graph.kernels):
        operands = graph.slots_of(kernel)
        pager.bring(operands)
        pager.engines.compute(kernel.name, problem.profile.base_us(kernel))
        pager.free([name for name in operands if graph.by_name[name].live.stop == index + 1])
    return simulated(problem, graph, pager.engines, pager.most_bytes)


class _Pager:
    """What is on the device, least recently used first."""

    def __init__(self, problem: Problem, graph: Graph) -> None:
        self.engines = Engines()
        self.most_bytes = 0
        self._problem, self._graph = problem, graph
        self._resident: OrderedDict[str, int] = OrderedDict()
        self._on_host: set[str] = set()
        self._used_bytes = 0

    def bring(self, operands: Collection[str]) -> None:
        """Make room for operands, and copy in those that are on the host only."""
        missing = [name for name in operands if name not in self._resident]
        for name in operands:
            if name in self._resident:
                self._resident.move_to_end(name)
        self._make_room(sum(self._graph.by_name[name].allocated_bytes for name in missing), operands)
        for name in missing:
            self._resident[name] = self._graph.by_name[name].allocated_bytes
            self._used_bytes += self._resident[name]
            if name in self._on_host:
                self._copy(Engine.IN, name)
        self.most_bytes = max(self.most_bytes, self._used_bytes)

    def _make_room(self, needed_bytes: int, operands: Collection[str]) -> None:
        for name in [name for name in self._resident if name not in operands]:
            if self._used_bytes + needed_bytes <= self._problem.limit_bytes:
                return
            self.free([name])
            if name not in self._on_host:
                self._copy(Engine.OUT, name)
                self._on_host.add(name)

    def free(self, names: Collection[str]) -> None:
        """Give back the memory of tensors, without a copy."""
        self._used_bytes -= sum(map(self._resident.pop, names))

    def _copy(self, engine: Engine, name: str) -> None:
        copy_and_wait(self.engines, self._problem, engine, name, self._graph.by_name[name].size_bytes)
