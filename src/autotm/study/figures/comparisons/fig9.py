"""Figure 9 of AutoTM: performance against the price of memory, as shares of all-fast."""

from __future__ import annotations

import pandas as pd

from autotm.model.files import BadInputError
from autotm.model.study import ALL_FAST, StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    in_order,
    limits_of,
    network_colors,
    panels,
    prices_remark,
    title,
)
from autotm.study.figures.comparisons.bars import bars, values
from autotm.study.setup import MOVER
from autotm.study.tables import at_limits

_ORDER = ("vgg19", "densenet264", "resnet200", "inception_v4")
"""Of the bars, as published."""
_MARK_WIDTH = 0.9


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Bars for each network at each ratio; prices (`with_prices`) as marks.

    Raises:
        BadInputError: the table has no synchronous runs.
    """
    runs = table[(table["optimizer"] == MOVER) & table["ratio_price"].notna()]
    if runs.empty:
        raise BadInputError(f"figure 9: no run of optimizer '{MOVER}'; add it to the workload's optimizers")
    places = [text for text in limits_of(runs, ends=True) if text != ALL_FAST]
    networks = in_order(runs["network"], _ORDER)
    figure, (axes,) = panels(1, style, widen=1.6)
    shades = network_colors(style, networks)
    performance = runs.assign(performance=1.0 / runs["slowdown"])
    series = [
        (title(name), values(performance[performance["network"] == name], places, "performance"), shades[name])
        for name in networks
    ]
    bars(axes, places, series, [at_limits(runs[runs["network"] == name], places) for name in networks])
    prices = values(runs, places, "ratio_price")
    left, right = ([place + side * _MARK_WIDTH / 2 for place in range(len(places))] for side in (-1, 1))
    axes.hlines(prices, left, right, color=GRAY, linewidth=1.4, zorder=3, label="price of memory")
    axes.set_ylim(0, max(1.05, 1.05 * float(performance["performance"].max())))
    axes.set_ylabel("share of all fast")
    axes.set_xlabel("slow : fast memory")
    finish(axes, "", f"Performance ({MOVER}) and price of memory")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, f"{caption(table)} {prices_remark(runs)}"
