"""Figure 8 of AutoTM: large networks, speed-up over memory-mode, where fast memory is a cache of slow memory.

Where slow memory is real and addressed by programs, it has no such cache: speed-ups are over what Linux does by itself
there, or over the simplest placement that there is.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from autotm.model.files import BadInputError
from autotm.model.study import ALL_FAST, StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    modelled_caption,
    optimizer_colors,
    panels,
    series_name,
    title,
)
from autotm.study.figures.comparisons.bars import bars
from autotm.study.setup import CACHED, FIRST_TOUCH, SPILLED
from autotm.study.tables import COLUMN, is_modelled, marked, require_one

_REMARKS = {
    "slowdown": "Bars: {name}'s slow-down over the optimizer's, each over the all-fast step of its own minutes.",
    "actual_runtime_median_s": "Bars: {name}'s median step over the optimizer's, timed one after the other.",
    "predicted_runtime_s": "Bars: {name}'s predicted step over the optimizer's.",
}
_WITHOUT_CACHE = "There is no {cached} here: fast memory is no cache of slow memory that programs address. "
_INSTEAD = (SPILLED, FIRST_TOUCH, "static")


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A group of bars for each network, a bar for each optimizer but the one compared with.

    Raises:
        BadInputError: runs at several limits, or a network without a run in memory-mode or without any other.
    """
    return _draw(table, style, "speed-up over {name}")


def draw_for_talk(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """The same, and which way is better.

    Raises:
        BadInputError: as `draw`.
    """
    return _draw(table, style, "speed-up over {name}\n(higher is better)")


def compared_with(table: pd.DataFrame) -> str:
    """The optimizer that the others are compared with: memory-mode wherever it can run."""
    has_no_cache = bool(table["tier_reality"].isin(("real", "stand-in")).all())
    if not has_no_cache or CACHED in set(table["optimizer"]):
        return CACHED
    return next((name for name in _INSTEAD if name in set(table["optimizer"])), CACHED)


def speedups(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each network and optimizer but the one compared with.

    Columns: `network`, `batch`, `optimizer`, `speedup`, `disturbed`.

    Slow-downs are divided where every run of the network has one, which leaves out the drift of the machine's speed
    between two runs; else median steps; of modelled steps, predictions.

    Raises:
        BadInputError: as `draw`.
    """
    runs = table[table["limit"] != ALL_FAST]
    require_one(runs, "limit")
    base, rows = compared_with(runs), []
    for network, of_network in runs.groupby("network", sort=False):
        time = of_network.set_index("optimizer")[_time_column(of_network)]
        if base not in time or len(time) == 1:
            raise BadInputError(
                f"figure 8: {network} was not run with optimizer '{base}' and another; add it to the workload's "
                "optimizers"
            )
        batch = of_network["batch"].iloc[0]
        is_marked = dict(zip(of_network["optimizer"], marked(of_network), strict=True))
        rows += [
            (network, batch, name, time[base] / time[name], is_marked[base] or is_marked[name])
            for name in time.index
            if name != base
        ]
    return pd.DataFrame(rows, columns=["network", "batch", "optimizer", "speedup", COLUMN])


def _draw(table: pd.DataFrame, style: StyleConfig, label: str) -> Drawn:
    found = speedups(table)
    wide = found.pivot_table(index="network", columns="optimizer", values="speedup", sort=False)
    batches = found.drop_duplicates("network").set_index("network")["batch"]
    colors = optimizer_colors(style)
    figure, (axes,) = panels(1, style, widen=1.6)
    places = [f"{title(str(name))} ({batches[name]})" for name in wide.index]
    hollow = found.pivot_table(index="network", columns="optimizer", values=COLUMN, sort=False, aggfunc="max")
    series = [(series_name(name), wide[name].tolist(), colors[name]) for name in wide.columns]
    bars(axes, places, series, [(hollow[name] == 1).tolist() for name in wide.columns])
    base = compared_with(table[table["limit"] != ALL_FAST])
    axes.axhline(1.0, color=GRAY, linewidth=0.8, label=series_name(base))
    axes.set_ylim(0, 1.1 * max(1.0, float(found["speedup"].max())))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylabel(label.format(name=series_name(base)))
    axes.set_xlabel("network (batch)")
    limit = table.loc[table["limit"] != ALL_FAST, "limit"].iloc[0]
    finish(axes, "", f"Large networks, slow : fast memory {limit}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    described = modelled_caption(table) if is_modelled(table) else caption(table)
    without = "" if base == CACHED else _WITHOUT_CACHE.format(cached=CACHED)
    return figure, f"{described} {without}{_REMARKS[_time_column(table)].format(name=series_name(base))}"


def _time_column(runs: pd.DataFrame) -> str:
    """What is divided."""
    if is_modelled(runs):
        return "predicted_runtime_s"
    return "slowdown" if bool(runs["slowdown"].notna().all()) else "actual_runtime_median_s"
