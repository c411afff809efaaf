"""A bound on what a memory limit costs a step whose tensors may be computed again, moved, or both.

What the limit cannot hold at a kernel is absent there. Each absent tensor comes back by another run of its producer or
by copies, and the cheapest way for each takes time. Copies that overlap kernels have no more time than these take:
copies out end before the kernel, copies back begin after it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from autotm.model.graph import Graph, Tier
from autotm.model.links import Links

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STEPS = 30
"""Halvings of the interval in which a kernel's bound lies: to a billionth of it."""


def least_added_us(
    graph: Graph,
    costs_us: Sequence[float],
    may: Collection[int],
    limit_bytes: int,
    links: Links | None,
    host_bytes: float = math.inf,
) -> float:
    """Return microseconds that every plan adds at least; 0 where all fits.

    Args:
        graph: the step; no tensor of it has to be in slow memory.
        costs_us: time of each kernel.
        may: kernels that may run again.
        limit_bytes: of fast memory.
        links: with asynchronous copies; None where nothing may move.
        host_bytes: of slow memory, for what is moved.
    """
    absent = _Absences(graph, costs_us, may, links, host_bytes)
    live_bytes = np.array(graph.live_bytes)
    least_us = 0.0
    for kernel in np.argsort(-live_bytes, kind="stable").tolist():
        if live_bytes[kernel] <= limit_bytes:
            break
        least_us = absent.raised_us(kernel, float(live_bytes[kernel] - limit_bytes), least_us)
    return least_us


class _Absences:
    """What it costs that tensors are absent during a kernel."""

    def __init__(
        self,
        graph: Graph,
        costs_us: Sequence[float],
        may: Collection[int],
        links: Links | None,
        host_bytes: float,
    ) -> None:
        tensors = [tensor for tensor in graph.movable if tensor.held is None]
        places = {tensor.name: place for place, tensor in enumerate(tensors)}
        self._used = [
            [places[operand.tensor] for operand in kernel.operands if operand.tensor in places]
            for kernel in graph.kernels
        ]
        self._starts = np.array([tensor.live.start for tensor in tensors], np.int64)
        self._stops = np.array([tensor.live.stop for tensor in tensors], np.int64)
        self._sizes = np.array([tensor.allocated_bytes for tensor in tensors], np.float64)
        self._until_us = [0.0, *accumulate(costs_us)]
        # One more run of a kernel may bring back all that it computes, so that each result bears an equal share.
        outputs = [len({operand.tensor for operand in kernel.outputs}) for kernel in graph.kernels]
        self._again_us = np.array(
            [
                math.inf if (made := tensor.producer) is None or made not in may else costs_us[made] / outputs[made]
                for tensor in tensors
            ]
        )
        self._moved_us, self._host_bytes = np.full(len(tensors), math.inf), 0.0
        self._us_per_byte = dict.fromkeys(Tier, 0.0)
        if links is not None:
            self._host_bytes, self._moved_us = host_bytes, np.zeros(len(tensors))
            sizes = [tensor.size_bytes for tensor in tensors]
            for tier in Tier:
                blocking_us = np.array([links.copy_us(tier, size) for size in sizes])
                alone_us = np.array([links.transfer_us(tier, size) for size in sizes])
                added_us = np.array([links.least_added_us(tier, size) for size in sizes])
                self._moved_us += np.minimum(blocking_us, added_us)
                self._us_per_byte[tier] = float((np.minimum(blocking_us, alone_us) / self._sizes).min(initial=math.inf))
        cheapest_us = np.minimum(self._again_us, self._moved_us)
        self._by_again = np.argsort(self._again_us / self._sizes, kind="stable")
        self._by_cheapest, self._cheapest_us = np.argsort(cheapest_us / self._sizes, kind="stable"), cheapest_us

    def raised_us(self, kernel: int, over_bytes: float, known_us: float) -> float:
        """Return the greater of a bound and that of a kernel at which so many bytes must be absent."""
        may = (self._starts <= kernel) & (kernel < self._stops)
        may[self._used[kernel]] = False
        cheapest = _Knapsack(self._sizes, self._cheapest_us, self._by_cheapest, may)
        if cheapest.size_bytes >= over_bytes:
            known_us = max(known_us, cheapest.cost_us(over_bytes))
        again = _Knapsack(self._sizes, self._again_us, self._by_again, may)

        def suffices(added_us: float) -> bool:
            left_bytes = over_bytes - self._moved_bytes(kernel, added_us)
            return left_bytes <= again.size_bytes and again.cost_us(left_bytes) <= added_us

        # In so much more time all may run again, and everything be copied.
        low_us, high_us = known_us, known_us + self._until_us[-1] + over_bytes * max(self._us_per_byte.values())
        if suffices(low_us) or not suffices(high_us):
            return known_us
        for _ in range(_STEPS):
            middle_us = (low_us + high_us) / 2
            low_us, high_us = (low_us, middle_us) if suffices(middle_us) else (middle_us, high_us)
        return low_us

    def _moved_bytes(self, kernel: int, added_us: float) -> float:
        """Return what copies out before a kernel and back after it can move in a step that takes so much longer."""
        if not self._host_bytes:
            return 0.0
        out_us, back_us = self._until_us[kernel], self._until_us[-1] - self._until_us[kernel + 1]
        times = ((Tier.SLOW, out_us + added_us), (Tier.FAST, back_us + added_us))
        moved = (us / self._us_per_byte[tier] if self._us_per_byte[tier] else math.inf for tier, us in times)
        return min(self._host_bytes, *moved)


class _Knapsack:
    """The least cost of so many bytes of some tensors, parts of tensors included."""

    def __init__(self, sizes: Floats, costs_us: Floats, order: Ints, may: npt.NDArray[np.bool_]) -> None:
        chosen = order[may[order] & np.isfinite(costs_us[order])]
        self._sizes = np.concatenate(([0.0], sizes[chosen].cumsum()))
        self._costs_us = np.concatenate(([0.0], costs_us[chosen].cumsum()))

    @property
    def size_bytes(self) -> float:
        """All there is."""
        return float(self._sizes[-1])

    def cost_us(self, size_bytes: float) -> float:
        """Return the cost of so many bytes, at most `size_bytes`."""
        return float(np.interp(size_bytes, self._sizes, self._costs_us))
