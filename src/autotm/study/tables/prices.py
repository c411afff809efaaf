"""What the memory of a run costs, over that of the same step with everything in fast memory."""

from __future__ import annotations

import math

import pandas as pd

from autotm.model.step import Limit
from autotm.model.study import PricesConfig

BYTES_PER_GB = 1e9


def ratio_price(limit: Limit, prices: PricesConfig) -> float:
    """Price of the memory that a ratio slow:fast describes over that of as much fast memory; NaN for bytes."""
    if limit.slow is None or limit.fast is None:
        return math.nan
    parts = limit.slow * prices.slow_per_gb + limit.fast * prices.fast_per_gb
    return parts / ((limit.slow + limit.fast) * prices.fast_per_gb)


def with_prices(table: pd.DataFrame, prices: PricesConfig) -> pd.DataFrame:
    """The runs with what their memory costs.

    `ratio_price` is that of the limit's ratio. `pools_price` is that of the memory that the run took, parameters,
    inputs and results in fast memory included, and of the rest of the machine, over both of the all-fast step.
    `price_ratio` is how many times as much a byte of fast memory costs.
    """
    fast = (table["dram_alloc_bytes"] + table["uncounted_bytes"]) * prices.fast_per_gb / BYTES_PER_GB
    slow = table["pmem_alloc_bytes"] * prices.slow_per_gb / BYTES_PER_GB
    all_fast = (table["peak_live_bytes"] + table["uncounted_bytes"]) * prices.fast_per_gb / BYTES_PER_GB
    return table.assign(
        ratio_price=[ratio_price(Limit.parse(text), prices) for text in table["limit"]],
        pools_price=(fast + slow + prices.rest) / (all_fast + prices.rest),
        price_ratio=prices.fast_per_gb / prices.slow_per_gb,
    )
