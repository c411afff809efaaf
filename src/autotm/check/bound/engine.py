"""Copying engines in a plan: which windows a tensor's asynchronous moves may take, and whether the engines keep up.

Definitions (A1) to (A5) of `docs/formulation.md` §9, written down a second time: nothing here is shared with `solve`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.measurement import Links, Profile
from autotm.model.plan import WINDOW_HALVES, Move
from autotm.model.step import Graph, Tensor, Tier

_NEVER_NS = 2**62

_Job = tuple[int, int, int, str]
"""From when and until when a move may be made, how long an engine works at it (nanoseconds), and which it is."""


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

    @cached_property
    def until_ns(self) -> npt.NDArray[np.int64]:
        """(kernels + 1,) When each kernel begins, and the last one ends."""
        return np.concatenate(([0], np.cumsum(self.kernel_ns)))

    @cached_property
    def held_up_ns(self) -> dict[Tier, npt.NDArray[np.int64]]:
        """(kernels + 1,) By destination: what kernels add, until each begins, to a copy as long as they are."""
        found = {}
        for tier in Tier:
            shares = np.array([self.links.contention(tier)[kernel.op_class].to_copy for kernel in self.graph.kernels])
            found[tier] = np.concatenate(([0], np.cumsum(np.rint(shares * self.kernel_ns).astype(np.int64))))
        return found

    def alone_ns(self, tensor: Tensor, destination: Tier) -> int:
        """(A1) How long an engine works at a move with no kernel beside it."""
        return math.ceil(1e3 * self.links.transfer_us(destination, tensor.size_bytes))

    def work_ns(self, tensor: Tensor, destination: Tier, start: int, end: int) -> int:
        """(A2) How long an engine works at a move beside kernels [start, end)."""
        alone = self.alone_ns(tensor, destination)
        held_up, until = self.held_up_ns[destination], self.until_ns
        more = alone * int(held_up[end] - held_up[start])
        lasts = max(int(until[end] - until[start]), 1)
        return alone + (more + lasts - 1) // lasts

    def windows(self, tensor: Tensor, destination: Tier, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(A3) Kernels [start, end) of the moves that are allowed in the gap [first, end)."""
        passed_ns = self.until_ns[first : end + 1] - self.until_ns[first]
        whole = int(passed_ns[-1])
        middle = int(np.argmax(2 * passed_ns >= whole))
        alone_ns = self.alone_ns(tensor, destination)
        for half in WINDOW_HALVES:
            enough = 2 * (passed_ns if destination is Tier.PMEM else whole - passed_ns) >= half * alone_ns
            places = np.flatnonzero(enough)
            if destination is Tier.PMEM and len(places) and places[0] <= middle:
                span = first, first + int(places[0])
            elif destination is Tier.DRAM and len(places) and places[-1] >= middle:
                span = first + int(places[-1]), end
            else:
                continue
            if self.work_ns(tensor, destination, *span) <= self.until_ns[span[1]] - self.until_ns[span[0]]:
                yield span

    def check(self, chosen: Graph, moves: Sequence[Move]) -> None:
        """Every asynchronous move has a window that it may have, and no engine has more to do than it can.

        `chosen` is the step with the implementations of the plan, whose workspaces its moves may name.
        """
        asked: dict[Tier, list[_Job]] = {tier: [] for tier in Tier}
        for move in moves:
            if move.since is None:
                continue
            tensor = chosen.by_name[move.tensor]
            where = f"'{move.tensor}' to {move.destination} beside kernels [{move.since}, {move.before})"
            require((move.since, move.before) in self._allowed(tensor, move), Fault.WINDOW, where)
            span_ns = int(self.until_ns[move.since]), int(self.until_ns[move.before])
            work_ns = self.work_ns(tensor, move.destination, move.since, move.before)
            asked[move.destination].append((*span_ns, work_ns, where))
        for jobs in asked.values():
            late = _late(jobs)
            require(late is None, Fault.ENGINE, f"{late}: its engine has too much to do to be done in time")

    def _allowed(self, tensor: Tensor, move: Move) -> set[tuple[int, int]]:
        """Windows of the gap between two users in which the move begins."""
        assert move.since is not None
        before = max((user for user in tensor.users if user < move.since), default=None)
        after = min((user for user in tensor.users if user >= move.since), default=None)
        if before is None or after is None:
            return set()
        return set(self.windows(tensor, move.destination, before + 1, after))


def _late(jobs: Iterable[_Job]) -> str | None:
    """(A4) A move that is late though the one that must be complete first is always served first; None if none is."""
    waiting: list[tuple[int, int, str]] = []
    now_ns = 0
    for begins_ns, due_ns, work_ns, where in [*sorted(jobs), (_NEVER_NS, _NEVER_NS, 0, "")]:
        while waiting and now_ns < begins_ns:
            due, left_ns, name = heapq.heappop(waiting)
            worked_ns = min(left_ns, begins_ns - now_ns)
            now_ns += worked_ns
            if now_ns > due:
                return name
            if worked_ns < left_ns:
                heapq.heappush(waiting, (due, left_ns - worked_ns, name))
        now_ns = max(now_ns, begins_ns)
        heapq.heappush(waiting, (due_ns, work_ns, where))
    return None
