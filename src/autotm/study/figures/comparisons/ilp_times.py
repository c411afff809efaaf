"""How long placements took to find, by network: building the model and solving it, over all attempts."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from autotm.model.files import BadInputError
from autotm.model.plan import Status
from autotm.model.study import StyleConfig
from autotm.study.drawing import Drawn, caption, finish, optimizer_colors, panels, series_name, title
from autotm.study.figures.comparisons.bars import bars
from autotm.study.tables import BEFORE, COLUMN

_LEAST_S = 1e-4
"""A log axis has no place for less."""
_BUILDING = {"linestyle": "none", "marker": "_", "markersize": 9, "color": "white", "markeredgewidth": 1.4}


def longest(table: pd.DataFrame) -> pd.DataFrame:
    """For each network and optimizer that searches, its limit that took longest, with `total_s`."""
    searched = table[table["solver_status"] != str(Status.NOT_OPTIMIZED)]
    total = searched.assign(total_s=searched["creation_s"] + searched["optimization_s"])
    return total.loc[total.groupby(["network", "optimizer"], sort=False)["total_s"].idxmax()]


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A bar for each network and optimizer that searches, on a log axis.

    Raises:
        BadInputError: no optimizer searched for its plans.
    """
    slowest = longest(table)
    if slowest.empty:
        raise BadInputError("solution times: no run of an optimizer that searches (static, synchronous, asynchronous)")
    networks, optimizers = (list(dict.fromkeys(slowest[column])) for column in ("network", "optimizer"))
    columns = ["total_s", "creation_s"]
    seconds = slowest.pivot_table(index="network", columns="optimizer", values=columns).clip(lower=_LEAST_S)
    figure, (axes,) = panels(1, style, widen=1.4)
    colors = optimizer_colors(style)
    series = [
        (series_name(name), seconds["total_s", name].reindex(networks).tolist(), colors[name]) for name in optimizers
    ]
    bars(axes, [title(name) for name in networks], series)
    for name, container in zip(optimizers, axes.containers, strict=True):
        middles = [bar.get_x() + bar.get_width() / 2 for bar in container]
        axes.plot(middles, seconds["creation_s", name].reindex(networks), **_BUILDING)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(slowest["creation_s"].clip(lower=_LEAST_S).min() / 2, slowest["total_s"].max() * 2)
    axes.set_ylabel("building and solving, s")
    finish(axes, "", "Time to find a placement (longest over the limits)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    which = ", ".join(f"{row['network']} {row['optimizer']} {row['limit']}" for _, row in slowest.iterrows())
    described = caption(table.assign(**{COLUMN: False, BEFORE: ""}))
    return figure, f"{described} White lines: building the model alone. Longest: {which}."
