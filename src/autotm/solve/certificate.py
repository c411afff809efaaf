"""A lower bound on every plan from prices of fast memory (Lagrangian relaxation of the capacity rows)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotm.solve.flow import Flow
from autotm.solve.shortest_path import best_value


def bound_us(
    flows: Sequence[Flow], prices_us_per_byte: npt.NDArray[np.float64], limit_bytes: int, base_us: float
) -> float:
    """Base time, plus every tensor's cheapest journey when it pays for fast memory, minus the price of the limit.

    Valid for any prices >= 0 and tight for the duals of the capacity rows. A tensor larger than the limit never is in
    fast memory.
    """
    paid = np.concatenate(([0.0], np.cumsum(prices_us_per_byte)))

    def price(flow: Flow, start: int, end: int) -> float:
        if end <= start:
            return 0.0
        return float(paid[end] - paid[start]) * flow.size_bytes if flow.size_bytes <= limit_bytes else math.inf

    total = base_us - float(prices_us_per_byte.sum()) * limit_bytes
    for flow in flows:
        fast = [price(flow, start, stop) for start, stop in zip(flow.starts, flow.stops, strict=True)]
        between = [price(flow, *flow.gap(k)) for k in range(len(flow) - 1)]
        total += best_value(flow, fast, between)
    return total
