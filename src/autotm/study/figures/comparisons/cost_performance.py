"""Price of memory over performance, a bar a run: below 1, mixed memory gives more for its price than fast memory."""

from __future__ import annotations

import pandas as pd

from autotm.model.files import BadInputError
from autotm.model.study import StyleConfig
from autotm.study.drawing import GRAY, Drawn, caption, finish, limits_of, network_colors, panels, prices_remark, title
from autotm.study.figures.comparisons.bars import bars, values
from autotm.study.setup import MOVER
from autotm.study.tables import at_limits


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A group for each limit, a bar in it for each network.

    Raises:
        BadInputError: the table has no synchronous runs.
    """
    runs = table[table["optimizer"] == MOVER]
    if runs.empty:
        raise BadInputError(f"cost-performance: no run of optimizer '{MOVER}'; add it to the workload's optimizers")
    runs = runs.assign(ratio=runs["pools_price"] * runs["slowdown"])
    places, networks = limits_of(runs, ends=True), list(dict.fromkeys(runs["network"]))
    colors = network_colors(style, networks)
    figure, (axes,) = panels(1, style, widen=1.4)
    series = [(title(name), values(runs[runs["network"] == name], places, "ratio"), colors[name]) for name in networks]
    bars(axes, places, series, [at_limits(runs[runs["network"] == name], places) for name in networks])
    axes.axhline(1.0, color=GRAY, linewidth=0.8, label="all fast")
    axes.set_ylim(0, 1.1 * max(1.0, float(runs["ratio"].max())))
    axes.set_ylabel("price over performance\n(lower is better)")
    axes.set_xlabel("slow : fast memory")
    finish(axes, "", f"Price of memory over performance ({MOVER})")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, f"{caption(runs)} {prices_remark(runs)} Prices are those of the memory that a run took."
