"""Figure 7 of AutoTM: speed-up over a step whose intermediates are all in slow memory, a panel a network."""

from __future__ import annotations

import math
import string

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from autotm.model.files import BadInputError
from autotm.model.study import ALL_SLOW, StyleConfig
from autotm.study.drawing import Drawn, caption, finish, grid, limits_of, optimizer_colors, series_name, title
from autotm.study.figures.comparisons.bars import bars, values
from autotm.study.tables import at_limits, marked

_COLUMNS = 2
_ALL_FAST_LINE = {"color": "#c0392b", "linestyle": (0, (4, 2)), "linewidth": 1.1}


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """One panel for each network in the table.

    Raises:
        BadInputError: a network has no run at limit 1:0.
    """
    networks = list(dict.fromkeys(table["network"]))
    figure, axes_of = grid(len(networks), min(_COLUMNS, len(networks)), style)
    for letter, axes, network in zip(string.ascii_lowercase, axes_of, networks, strict=False):
        _draw_network(axes, table[table["network"] == network], style)
        finish(axes, letter, title(network))
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, (
        f"{caption(table)} Bars: slow-down with all intermediates in slow memory (1:0) over the slow-down at the "
        "limit, each against the all-fast step of its own minutes."
    )


def _draw_network(axes: Axes, runs: pd.DataFrame, style: StyleConfig) -> None:
    slowest = runs.loc[runs["limit"] == ALL_SLOW, "slowdown"]
    if slowest.empty:
        raise BadInputError(
            f'figure 7: no run of {runs["network"].iloc[0]} at limit "{ALL_SLOW}"; add it to the limits'
        )
    most, is_most_disturbed = float(slowest.max()), bool(marked(runs)[slowest.idxmax()])
    places, colors = limits_of(runs, ends=False), optimizer_colors(style)
    series = [
        (
            series_name(str(optimizer)),
            [most / value for value in values(of_optimizer, places, "slowdown")],
            colors[str(optimizer)],
        )
        for optimizer, of_optimizer in runs.groupby("optimizer", sort=False)
    ]
    hollow = [
        [is_most_disturbed or one for one in at_limits(of_optimizer, places)]
        for _, of_optimizer in runs.groupby("optimizer", sort=False)
    ]
    bars(axes, places, series, hollow)
    axes.axhline(most, label="all fast", **_ALL_FAST_LINE)
    axes.set_ylim(0, math.ceil(most) + 0.2)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_ylabel("speed-up over all slow")
    axes.set_xlabel("slow : fast memory")
