"""Legal plans from fractional or overfull ones: insert journeys one by one into the fast memory that is left.

All bytes are integers here, so what this returns keeps the limit exactly, whatever tolerances a solver had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotm.solve.feasible import required_bytes
from autotm.solve.flow import Flow
from autotm.solve.journey import Journey, all_slow, cost_us, fast_spans, occupy
from autotm.solve.shortest_path import best_journey

_SWEEPS = 4
_PREFER_FAST_US = 1e-7
"""Far below a nanosecond: among equally fast plans, the one that leaves more in fast memory."""


class Repair:
    """Journeys of all flows together with the fast bytes that are left during each kernel."""

    def __init__(self, flows: Sequence[Flow], limit_bytes: int, kernels: int) -> None:
        self.flows = flows
        self.journeys: dict[int, Journey] = {}
        self.left: npt.NDArray[np.int64] = limit_bytes - required_bytes(flows, kernels)
        self.order = sorted(range(len(flows)), key=lambda index: -flows[index].total_slow_us / flows[index].size_bytes)

    def accept(self, proposed: Mapping[int, Journey]) -> None:
        """Take the proposed journeys that fit together; the larger tensors first."""
        for index in sorted(proposed, key=lambda index: -self.flows[index].size_bytes):
            if self._fits(index, proposed[index]):
                self._insert(index, proposed[index])

    def complete(self) -> None:
        """Give every flow that has no journey yet its cheapest one in the memory that is left."""
        for index in self.order:
            if index not in self.journeys:
                self._insert(index, self._best(index))

    def improve(self) -> None:
        """Take out and re-insert each flow in turn until nothing improves; never makes the plan slower."""
        for _ in range(_SWEEPS):
            if not sum(self._reinsert(index) for index in self.order):
                return

    @property
    def cost_us(self) -> float:
        """What all journeys together add to the all-fast step."""
        return sum(cost_us(self.flows[index], journey) for index, journey in self.journeys.items())

    def _reinsert(self, index: int) -> bool:
        before = self.journeys[index]
        if cost_us(self.flows[index], before) == 0 and all(before.fast) and all(before.between):
            return False
        self._remove(index)
        after = self._best(index)
        if self._rank(index, after) >= self._rank(index, before):
            after = before
        self._insert(index, after)
        return after != before

    def _rank(self, index: int, journey: Journey) -> float:
        return cost_us(self.flows[index], journey) - _PREFER_FAST_US * (sum(journey.fast) + sum(journey.between))

    def _best(self, index: int) -> Journey:
        flow = self.flows[index]
        size = flow.size_bytes
        fast = [
            -_PREFER_FAST_US if must or self.left[start:stop].min() >= size else math.inf
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True)
        ]
        between = [-_PREFER_FAST_US if self._gap_fits(flow, k) else math.inf for k in range(len(flow) - 1)]
        if fast.count(math.inf) == len(fast):
            return all_slow(flow)
        return best_journey(flow, fast, between)

    def _gap_fits(self, flow: Flow, k: int) -> bool:
        start, end = flow.gap(k)
        return start >= end or bool(self.left[start:end].min() >= flow.size_bytes)

    def _fits(self, index: int, journey: Journey) -> bool:
        flow = self.flows[index]
        self._reserve(flow, -1)
        fits = all(int(self.left[start:end].min()) >= flow.size_bytes for start, end in fast_spans(flow, journey))
        self._reserve(flow, 1)
        return fits

    def _insert(self, index: int, journey: Journey) -> None:
        self._reserve(self.flows[index], -1)
        occupy(self.left, self.flows[index], journey, -1)
        self.journeys[index] = journey

    def _remove(self, index: int) -> None:
        occupy(self.left, self.flows[index], self.journeys.pop(index))
        self._reserve(self.flows[index], 1)

    def _reserve(self, flow: Flow, sign: int) -> None:
        """Room for gadgets that have to be fast is kept from the start, so that every insertion order succeeds."""
        if any(flow.must):
            for start, stop, must in zip(flow.starts, flow.stops, flow.must, strict=True):
                if must:
                    self.left[start:stop] -= sign * flow.size_bytes
