"""Swap everything (vDNN), as moves beside one kernel each, for which the next kernel waits."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.plan import SWAP_ALL, Move, Stay
from autotm.model.step import Tier
from autotm.solve.bases import Rival, Ruled
from autotm.solve.problem import Problem
from autotm.solve.rivals import fastest, swapping


class SwapAll(Rival):
    """What `solve.rivals.swapping` does.

    A feature map that would have to be back before it is gone stays, where vDNN would copy it for nothing.
    """

    name: ClassVar[str] = SWAP_ALL

    def made(self, problem: Problem) -> Ruled:
        """A trip to slow memory for every feature map."""
        graph = fastest(problem)
        gone: dict[str, int] = {}
        stays: list[Stay] = []
        moves: list[Move] = []
        away: set[str] = set()
        for index, done in enumerate(swapping(graph)):
            gone |= dict.fromkeys(done.outward, index + 1)
            for name in (*done.at_once, *done.inward):
                if index < gone.get(name, len(graph.kernels)):
                    continue
                away.add(name)
                left, live = gone[name], graph.by_name[name].live
                moves.append(Move(name, Tier.PMEM, left, left - 1))
                moves.append(Move(name, Tier.DRAM, index) if name in done.at_once else _beside(name, index))
                stays.append(Stay(name, Tier.DRAM, live.start, left))
                stays.append(Stay(name, Tier.PMEM, left - 1, index + 1))
                stays.append(Stay(name, Tier.DRAM, index, live.stop))
        home = (tensor for tensor in graph.movable if tensor.name not in away)
        stays += [Stay(tensor.name, Tier.DRAM, tensor.live.start, tensor.live.stop) for tensor in home]
        return Ruled(graph, stays, moves)


def _beside(tensor: str, kernel: int) -> Move:
    return Move(tensor, Tier.DRAM, kernel + 1, kernel)
