"""A lower bound on every plan from prices (Lagrangian relaxation of the capacity rows and of the marginal rows)."""

from __future__ import annotations

import math

import numpy as np

from autotm.solve.choices import Choices, priced
from autotm.solve.flow import Flow
from autotm.solve.shortest_path import best_value
from autotm.solve.table import Floats, Table

SlowPrices = tuple[tuple[float, ...], ...]
"""Per table and operand, what the tensor pays the kernel for being slow."""


def bound_us(choices: Choices, prices_us_per_byte: Floats, slow_us: SlowPrices, limit_bytes: int) -> float:
    """Every tensor's cheapest journey and every table's cheapest entry at these prices, minus the price of the limit.

    Valid for any prices >= 0 and any `slow_us`, and tight for the duals of the capacity rows and marginal rows. What is
    larger than the limit never is in fast memory.
    """
    paid = np.concatenate(([0.0], np.cumsum(prices_us_per_byte)))

    def price(flow: Flow, start: int, end: int) -> float:
        if end <= start:
            return 0.0
        return float(paid[end] - paid[start]) * flow.size_bytes if flow.size_bytes <= limit_bytes else math.inf

    total = -float(prices_us_per_byte.sum()) * limit_bytes
    for flow, ties in zip(choices.flows, choices.ties, strict=True):
        fast = [price(flow, start, stop) for start, stop in zip(flow.starts, flow.stops, strict=True)]
        between = [price(flow, *flow.gap(k)) for k in range(len(flow) - 1)]
        total += best_value(flow, priced(flow, ties, slow_us), fast, between)
    for table, shares in zip(choices.tables, slow_us, strict=True):
        total += cheapest_entry_us(table, shares, float(prices_us_per_byte[table.kernel]), limit_bytes)
    return total


def cheapest_entry_us(table: Table, shares: tuple[float, ...], price_us_per_byte: float, limit_bytes: int) -> float:
    """A table's cheapest entry when operand o pays it `shares[o]` for being slow and workspaces rent fast memory."""
    slow = table.slow[:, None] >> np.arange(len(shares)) & 1
    cost_us = table.time_us + price_us_per_byte * table.fast_bytes - slow @ np.array(shares)
    return float(cost_us[table.fast_bytes <= limit_bytes].min())
