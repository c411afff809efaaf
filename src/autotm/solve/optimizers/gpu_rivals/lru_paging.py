"""Paging of whole tensors by least recent use, as blocking moves."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.plan import LRU_PAGING, Move, Stay
from autotm.model.step import Tier
from autotm.solve.bases import Rival, Ruled
from autotm.solve.problem import Problem
from autotm.solve.rivals import fastest, paging


class LruPaging(Rival):
    """What `solve.rivals.paging` does: known beforehand, since every step uses the same tensors in the same order."""

    name: ClassVar[str] = LRU_PAGING

    def made(self, problem: Problem) -> Ruled:
        """A stay in fast memory for each time on the device; one in slow memory from the only write to it on."""
        graph = fastest(problem)
        since = {tensor.name: tensor.live.start for tensor in graph.movable if tensor.held}
        stays: list[Stay] = []
        moves: list[Move] = []
        for done in paging(graph, problem.limit_bytes):
            stays += [Stay(name, Tier.DRAM, since.pop(name), done.kernel) for name in done.gone]
            stays += [Stay(name, Tier.PMEM, done.kernel, graph.by_name[name].live.stop) for name in done.out]
            moves += [Move(name, Tier.PMEM, done.kernel) for name in done.out]
            moves += [Move(name, Tier.DRAM, done.kernel) for name in done.brought]
            for name in graph.slots_of(graph.kernels[done.kernel]):
                since.setdefault(name, done.kernel)
            stays += [
                Stay(name, Tier.DRAM, since.pop(name), done.kernel + 1)
                for name in graph.slots_of(graph.kernels[done.kernel])
                if graph.by_name[name].live.stop == done.kernel + 1 and not graph.by_name[name].held
            ]
        stays += [Stay(name, Tier.DRAM, start, graph.by_name[name].live.stop) for name, start in since.items()]
        return Ruled(graph, stays, moves)
