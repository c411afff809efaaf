"""Paging of whole tensors: what was used least recently leaves the device when there is no room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from autotm.model.plan import Engine
from autotm.model.step import Graph
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, copy_and_wait, fastest, simulated


@dataclass(frozen=True)
class Paging:
    """What paging does before one kernel.

    Attributes:
        kernel: its index.
        gone: tensors that leave the device.
        out: those of them that are copied to the host; the others are there already.
        brought: tensors that are copied in.
        used_bytes: on the device during the kernel.
    """

    kernel: int
    gone: list[str] = field(default_factory=list)
    out: list[str] = field(default_factory=list)
    brought: list[str] = field(default_factory=list)
    used_bytes: int = 0


def paging(graph: Graph, limit_bytes: int) -> Iterator[Paging]:
    """Demand paging, kernel by kernel: nothing is known of the kernels to come.

    Before a kernel its operands are brought in, and room for them and for its results is made. A tensor is written
    once, so it is *dirty* until its first copy to the host, and dropped without one afterwards; what nobody will read
    is freed. Room is counted in bytes, without fragments. What every step finds on the device, where the limit counts
    it, stays there.
    """
    pager = _Pager(graph, limit_bytes)
    for index, kernel in enumerate(graph.kernels):
        operands = graph.slots_of(kernel)
        yield pager.bring(index, operands)
        pager.free([name for name in operands if graph.by_name[name].live.stop == index + 1])


def page_tensors(problem: Problem) -> Simulated:
    """`paging` on three engines: all copies are waited for."""
    graph, engines, most_bytes = fastest(problem), Engines(), 0
    for done, kernel in zip(paging(graph, problem.limit_bytes), graph.kernels, strict=True):
        for engine, names in ((Engine.OUT, done.out), (Engine.IN, done.brought)):
            for name in names:
                copy_and_wait(engines, problem, engine, name, graph.by_name[name].size_bytes)
        engines.compute(kernel.name, problem.profile.base_us(kernel))
        most_bytes = max(most_bytes, done.used_bytes)
    return simulated(problem, graph, engines, most_bytes)


class _Pager:
    """What is on the device, least recently used first."""

    def __init__(self, graph: Graph, limit_bytes: int) -> None:
        self._graph, self._limit_bytes = graph, limit_bytes
        self._held = {tensor.name for tensor in graph.tensors if tensor.held}
        self._resident = OrderedDict((name, graph.by_name[name].allocated_bytes) for name in sorted(self._held))
        self._on_host: set[str] = set()
        self._used_bytes = sum(self._resident.values())

    def bring(self, index: int, operands: Collection[str]) -> Paging:
        """Make room for operands, and copy in those that are on the host only."""
        gone: list[str] = []
        out: list[str] = []
        missing = [name for name in operands if name not in self._resident]
        for name in operands:
            if name in self._resident:
                self._resident.move_to_end(name)
        needed_bytes = sum(self._graph.by_name[name].allocated_bytes for name in missing)
        for name in [name for name in self._resident if name not in operands and name not in self._held]:
            if self._used_bytes + needed_bytes <= self._limit_bytes:
                break
            self.free([name])
            gone.append(name)
            if name not in self._on_host:
                out.append(name)
        self._on_host.update(out)
        for name in missing:
            self._resident[name] = self._graph.by_name[name].allocated_bytes
            self._used_bytes += self._resident[name]
        return Paging(index, gone, out, [name for name in missing if name in self._on_host], self._used_bytes)

    def free(self, names: Collection[str]) -> None:
        """Give back the memory of tensors, without a copy; what is held for the next step stays."""
        self._used_bytes -= sum(self._resident.pop(name) for name in names if name not in self._held)
