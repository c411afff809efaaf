"""Copying engines in a plan: which windows a tensor's asynchronous moves may take, and whether the engines keep up.

Definitions (A1) to (A5) of `docs/formulation.md` §9, written down a second time: nothing here is shared with `solve`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.engine import ENGINE_PARTS, WINDOW_HALVES
from autotm.model.graph import Graph, Tensor
from autotm.model.link import Links
from autotm.model.plan import Move
from autotm.model.profile import Profile
from autotm.model.tier import Tier


@dataclass(frozen=True)
class Engines:
    """The engines beside one step, by destination."""

    graph: Graph
    links: Links
    kernel_ns: npt.NDArray[np.int64]

    @classmethod
    def beside(cls, graph: Graph, profile: Profile, links: Links) -> Engines:
        """(A1) With the least all-fast time of every kernel over its implementations."""
        least = [profile.least_us(kernel) for kernel in graph.kernels]
        return cls(graph, links, np.rint(np.array(least) * 1e3).astype(np.int64))

    def use(self, tensor: Tensor, destination: Tier, start: int, end: int) -> int:
        """(A4) Parts of its engine that a move beside kernels [start, end) takes during each of them."""
        lasts_ns = int(self.kernel_ns[start:end].sum())
        return -(-self._transfer_ns(tensor, destination) * ENGINE_PARTS // lasts_ns)

    def windows(self, tensor: Tensor, destination: Tier, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(A3) Kernels [start, end) of the moves that are allowed in the gap [first, end)."""
        gap_ns = self.kernel_ns[first:end]
        passed_ns = np.concatenate(([0], np.cumsum(gap_ns)))
        whole = int(passed_ns[-1])
        middle = int(np.argmax(2 * passed_ns >= whole))
        for half in WINDOW_HALVES:
            enough = 2 * (passed_ns if destination is Tier.PMEM else whole - passed_ns) >= half * self._transfer_ns(
                tensor, destination
            )
            places = np.flatnonzero(enough)
            if destination is Tier.PMEM and len(places) and places[0] <= middle:
                yield first, first + int(places[0])
            if destination is Tier.DRAM and len(places) and places[-1] >= middle:
                yield first + int(places[-1]), end

    def check(self, chosen: Graph, moves: Sequence[Move]) -> None:
        """Every asynchronous move has a window that it may have, and no engine has more to do than it can.

        `chosen` is the step with the implementations of the plan, whose workspaces its moves may name.
        """
        busy = {tier: [0] * (len(self.graph.kernels) + 1) for tier in Tier}
        for move in moves:
            if move.since is None:
                continue
            tensor = chosen.by_name[move.tensor]
            where = f"'{move.tensor}' to {move.destination} beside kernels [{move.since}, {move.before})"
            require((move.since, move.before) in self._allowed(tensor, move), Fault.WINDOW, where)
            use = self.use(tensor, move.destination, move.since, move.before)
            busy[move.destination][move.since] += use
            busy[move.destination][move.before] -= use
        for tier, changes in busy.items():
            most = int(np.cumsum(changes).max())
            require(most <= ENGINE_PARTS, Fault.ENGINE, f"to {tier}: {most} of {ENGINE_PARTS} parts are taken")

    def _allowed(self, tensor: Tensor, move: Move) -> set[tuple[int, int]]:
        """Windows of the gap between two users in which the move begins."""
        assert move.since is not None
        before = max((user for user in tensor.users if user < move.since), default=None)
        after = min((user for user in tensor.users if user >= move.since), default=None)
        if before is None or after is None:
            return set()
        return set(self.windows(tensor, move.destination, before + 1, after))

    def _transfer_ns(self, tensor: Tensor, destination: Tier) -> int:
        return math.ceil(1e3 * self.links.transfer_us(destination, tensor.size_bytes))
