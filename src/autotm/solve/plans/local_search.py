"""Improving a legal plan: take out a few flows that get in each other's way, and insert them in another order.

A large neighbourhood search (Shaw, 1998) that draws flows by what the plan loses by them at the prices of the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from autotm.solve.bounds import Priced
from autotm.solve.plans.losses import Losses
from autotm.solve.plans.repair import Repair
from autotm.solve.problem import Floats, Ints

_TOGETHER = (2, 12)
"""Least and most flows taken out at once."""

_PATIENCE = 10
"""Rounds without improvement after which the search ends, as a multiple of the number of flows that matter."""

_FRESH = 300
"""Rounds after which losses are worked out anew."""

_LEAST_WEIGHT = 0.02
"""Of a flow by which nothing is lost, in mean losses, where the first of a group is drawn; the others' is one more."""


def refine(
    repair: Repair,
    priced: Priced,
    deadline_s: float,
    target_us: float,
    seed: int,
    exchange: Callable[[Sequence[int]], bool] | None = None,
) -> None:
    """Improve the plan until it costs no more than `target_us`, `time.perf_counter` reaches `deadline_s`, or no more.

    `exchange` takes flows out and inserts them again if that helps; the plan's own, if not given. Only flows that could
    be cheaper than they are, and those that hold memory when they do, are taken out.
    """
    groups = _Groups(repair, priced, seed)
    if groups.count < _TOGETHER[0]:
        return
    rounds, idle, cost_us = 0, 0, repair.cost_us
    while idle < _PATIENCE * groups.count and cost_us > target_us and time.perf_counter() < deadline_s:
        if rounds % _FRESH == 0:
            groups.weigh()
        rounds += 1
        if (exchange or repair.exchange)(groups.draw()):
            idle, cost_us = 0, repair.cost_us
        else:
            idle += 1


class _Groups:
    """Draws groups of flows that are alive at one kernel, in any order."""

    def __init__(self, repair: Repair, priced: Priced, seed: int) -> None:
        self._repair = repair
        self._losses = Losses(repair.flows, priced)
        self._byte_us = priced.prices.byte_us
        self._random = np.random.default_rng(seed)
        flows = enumerate(repair.flows)
        matter = [index for index, flow in flows if any(flow.out + flow.back) or any(flow.slow_us)]
        self._eligible: Ints = np.array(matter, np.int64)
        self._starts: Ints = np.array([repair.flows[index].starts[0] for index in matter], np.int64)
        self._stops: Ints = np.array([repair.flows[index].stops[-1] for index in matter], np.int64)
        self._weights: Floats = np.ones(len(matter))

    @property
    def count(self) -> int:
        """Flows that may be drawn."""
        return len(self._eligible)

    def weigh(self) -> None:
        """Draw by what the plan loses now."""
        lost_us = self._losses.of_us(self._repair)[self._eligible]
        if lost_us.any():
            self._weights = lost_us / lost_us.mean() + _LEAST_WEIGHT

    def draw(self) -> list[int]:
        """A flow, and others that are alive at a kernel of its life."""
        first = self._one_of(self._weights)
        kernel = self._kernel(int(self._starts[first]), int(self._stops[first]))
        alive = (self._starts <= kernel) & (kernel < self._stops)
        alive[first] = False
        others = alive.nonzero()[0]
        count = min(len(others), int(self._random.integers(_TOGETHER[0] - 1, _TOGETHER[1])))
        weights = self._weights[others] + 1
        chosen = self._random.choice(others, count, replace=False, p=weights / weights.sum()) if count else others
        group: list[int] = self._random.permutation(self._eligible[[first, *chosen]]).tolist()
        return group

    def _kernel(self, start: int, stop: int) -> int:
        """Of a life, drawn by the price of memory."""
        byte_us = self._byte_us[start:stop]
        return start + (self._one_of(byte_us) if byte_us.any() else int(self._random.integers(stop - start)))

    def _one_of(self, weights: Floats) -> int:
        until = np.cumsum(weights)
        return int(np.searchsorted(until, self._random.random() * until[-1], side="right"))
