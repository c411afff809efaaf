"""Every figure by name, and how it is made: measurements -> table -> picture, drawn from the table alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd

from autotm.model.config import StyleConfig
from autotm.model.limit import ALL_FAST, ALL_SLOW
from autotm.study.drawing import Drawn, draw_to_files
from autotm.study.figures import comparisons, gpu, heap, kernel_times, limits, memory_prices, slow_memories
from autotm.study.tables import read_table

FIGURES: Mapping[str, Callable[[pd.DataFrame, StyleConfig], Drawn]] = {
    "fig7": comparisons.draw_fig7,
    "fig8": comparisons.draw_fig8,
    "fig8_talk": partial(comparisons.draw_fig8, label="speed-up over {name}\n(higher is better)"),
    "fig9": memory_prices.draw_fig9,
    "fig10": limits.draw_fig10,
    "fig10a_all_fast": partial(limits.draw_fig10a, limit=str(ALL_FAST)),
    "fig10a_all_slow": partial(limits.draw_fig10a, limit=str(ALL_SLOW)),
    "fig10a_synchronous": limits.draw_fig10a,
    "fig11": comparisons.draw_fig11,
    "fig12": gpu.draw_fig12,
    "fig12_timeline": gpu.draw_timeline,
    "front": memory_prices.draw_front,
    "ilp_times": comparisons.draw_ilp_times,
    "price_performance": memory_prices.draw_price_performance,
    "cost_performance": memory_prices.draw_cost_performance,
    "kernel_plot": kernel_times.draw_kernel_plot,
    "heap": heap.draw,
    "devices": slow_memories.draw_devices,
    "links": slow_memories.draw_links,
}
"""The function that makes the picture and its caption from the table."""


def draw(csv: Path, style: StyleConfig) -> None:
    """Draw the figure that a .csv is named after from that file alone, beside it: the same bytes each time.

    Raises:
        BadInputError: the table lacks what the figure needs.
    """
    draw_to_files(FIGURES[csv.stem], read_table(csv), csv, style)
