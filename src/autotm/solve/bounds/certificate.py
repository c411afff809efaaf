"""What prices charge: the Lagrangian relaxation of capacity, knapsack, marginal and engine rows, term by term."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autotm.solve.bounds.cut import Cut
from autotm.solve.bounds.engine_prices import EnginePrices, SpanPrices
from autotm.solve.problem import Charges, Floats, Flow, Ints, Table, Way, Window

SlowPrices = tuple[tuple[float, ...], ...]
"""Per table and operand, what the tensor pays the kernel for being slow."""


@dataclass(frozen=True)
class Prices:
    """What a relaxation charges.

    Attributes:
        byte_us: for a byte of fast memory during each kernel; none below 0.
        slow_us: per table and operand.
        engines: for the time of the copying engines.
        cut_us: for a unit of weight by a cut during each kernel; none below 0.
    """

    byte_us: Floats
    slow_us: SlowPrices
    engines: EnginePrices
    cut_us: Mapping[Cut, Floats] = field(default_factory=dict)

    def holding_us(self, limit_bytes: int) -> float:
        """Of all that the step has of what is charged."""
        total = float(self.byte_us.sum()) * limit_bytes
        total += sum(float(each.sum()) * cut.most for cut, each in self.cut_us.items())
        return total + self.engines.out.whole_us + self.engines.back.whole_us

    @cached_property
    def weighed_us(self) -> Mapping[str, Floats]:
        """(kernels + 1,) By tensor that has weights, what it pays for them in the kernels before each."""
        found: dict[str, Floats] = defaultdict(lambda: np.zeros(len(self.byte_us) + 1))
        for cut, each in self.cut_us.items():
            kernels = each.nonzero()[0]
            for tensor, weight in cut.weights.items():
                found[tensor][kernels + 1] += weight * each[kernels]
        return {tensor: np.cumsum(paid) for tensor, paid in found.items()}

    @cached_property
    def cuts_at(self) -> Mapping[int, Sequence[tuple[Cut, float]]]:
        """By kernel, the cuts that have a price there."""
        found: dict[int, list[tuple[Cut, float]]] = defaultdict(list)
        for cut, each in self.cut_us.items():
            for kernel in each.nonzero()[0].tolist():
                found[kernel].append((cut, float(each[kernel])))
        return found


class HoldingCosts:
    """Prices summed over kernels, so that what a span of them costs is a difference."""

    def __init__(self, prices: Prices, limit_bytes: int) -> None:
        self._prices = prices
        self._byte_us = _until(prices.byte_us)
        self._engines = prices.engines
        self._weighed_us = prices.weighed_us
        self._limit_bytes = limit_bytes

    def charges(self, flow: Flow, beside_only: Collection[tuple[int, bool]] = ()) -> Charges:
        """What the flow is charged; copies over the gaps `beside_only` (gap, to slow memory) cannot be blocking."""
        gaps = range(len(flow) - 1)
        write_us = [math.inf if (k, True) in beside_only else flow.write_us for k in gaps]
        read_us = [math.inf if (k, False) in beside_only else flow.read_us for k in gaps]
        return Charges(
            slow_us=flow.slow_us,
            fast_us=[self.memory_us(flow, start, stop) for start, stop in zip(flow.starts, flow.stops, strict=True)],
            between_us=[self.memory_us(flow, *flow.gap(k)) for k in gaps],
            out=[self._cheapest(flow, flow.out[k], write_us[k], self._engines.out) for k in gaps],
            back=[self._cheapest(flow, flow.back[k], read_us[k], self._engines.back) for k in gaps],
        )

    def _window_us(self, flow: Flow, window: Window, engine: SpanPrices) -> float:
        """Holding cost of memory and engine over a window."""
        return self.memory_us(flow, window.start, window.end) + engine.of_us(window)

    def during_us(self, kernel: int, size_bytes: Ints) -> Floats:
        """(sizes,) Holding cost of so many bytes each during one kernel."""
        total: Floats = self._prices.byte_us[kernel] * size_bytes
        for cut, price_us in self._prices.cuts_at.get(kernel, ()):
            total = total + price_us * cut.of_workspaces(size_bytes)
        return total

    def window_us(self, flow: Flow, window: Window, *, is_out: bool) -> float:
        """Holding cost of memory and engine over a window."""
        return self._window_us(flow, window, self._engines.out if is_out else self._engines.back)

    def _cheapest(self, flow: Flow, windows: Sequence[Window], blocking_us: float, engine: SpanPrices) -> Way:
        ways: list[Way] = [(blocking_us, None)]
        ways += [(window.added_us + self._window_us(flow, window, engine), window) for window in windows]
        return min(ways, key=lambda way: way[0])

    def memory_us(self, flow: Flow, start: int, end: int) -> float:
        """Holding cost of fast memory during kernels [start, end)."""
        if end <= start:
            return 0.0
        if flow.size_bytes > self._limit_bytes:
            return math.inf
        total = float(self._byte_us[end] - self._byte_us[start]) * flow.size_bytes
        until_us = self._weighed_us.get(flow.tensor)
        return total if until_us is None else total + float(until_us[end] - until_us[start])


def _until(prices_us: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(prices_us)))


def cheapest_entry_us(
    table: Table, shares: tuple[float, ...], holding_us: Floats, most_bytes: int, more_than_bytes: int = -1
) -> float:
    """A table's cheapest entry when operand o pays it `shares[o]` for being slow, and entry e pays `holding_us[e]`.

    Its fast bytes are more than `more_than_bytes` and at most `most_bytes`; infinite where no entry's are.
    """
    slow = table.slow[:, None] >> np.arange(len(shares)) & 1
    cost_us = table.time_us + holding_us - slow @ np.array(shares)
    allowed = (table.fast_bytes > more_than_bytes) & (table.fast_bytes <= most_bytes)
    return float(cost_us[allowed].min(initial=math.inf))
