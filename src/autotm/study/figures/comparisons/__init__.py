"""Figures that compare networks or optimizers."""

from autotm.study.figures.comparisons import (
    cost_performance,
    devices,
    fig7,
    fig8,
    fig9,
    fig11,
    ilp_times,
    price_performance,
)
from autotm.study.figures.comparisons.bars import bars
from autotm.study.figures.comparisons.devices import table_of_devices

__all__ = [
    "bars",
    "cost_performance",
    "devices",
    "fig7",
    "fig8",
    "fig9",
    "fig11",
    "ilp_times",
    "price_performance",
    "table_of_devices",
]
