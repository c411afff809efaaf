"""Figures that compare optimizers by network: speed-ups, errors of predictions, times to solve.

A table that lacks a run which a figure needs raises BadInputError, whose message names it.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.limit import ALL_FAST, ALL_SLOW
from autotm.model.plan import Status
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    modelled_caption,
    network_colors,
    optimizer_colors,
    panels,
    series_name,
    title,
)
from autotm.study.setup import CACHED, FIRST_TOUCH, SPILLED
from autotm.study.tables import (
    DISTURBED,
    DISTURBED_BEFORE,
    disturbed_at,
    is_disturbed,
    is_modelled,
    limits_of,
    require_one,
)

_GROUP_WIDTH = 0.8  # of the bars of a group, which begin 1 apart


def bars(
    axes: Axes,
    places: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], Any]],
    hollow: Sequence[Sequence[bool]] = (),
) -> None:
    """Draw grouped bars: one group for each place on x, one bar in it for each (label, heights, colour).

    `hollow` says of each bar, series by series, whether it is drawn as an outline, since its run was disturbed.
    """
    width = _GROUP_WIDTH / len(series)
    for number, (label, heights, color) in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * width
        middles = [place + shift for place in range(len(places))]
        drawn = axes.bar(middles, heights, 0.92 * width, color=color, label=label, linewidth=0)
        outline(drawn, hollow[number] if hollow else ())
    axes.set_xticks(range(len(places)), places)
    axes.grid(visible=False, axis="x")


def outline(drawn: Iterable[Rectangle], hollow: Sequence[bool]) -> None:
    """Draw those of the bars as outlines in their own colour that `hollow` marks."""
    for bar, is_hollow in zip(drawn, hollow, strict=False):
        if is_hollow:
            bar.set(facecolor="none", edgecolor=bar.get_facecolor(), linewidth=1.0)


def bars_of(
    axes: Axes,
    runs: pd.DataFrame,
    names: Sequence[str],
    places: Sequence[str],
    column: str,
    style: StyleConfig,
    *,
    of: Literal["network", "optimizer"] = "network",
    by: str = "limit",
) -> None:
    """Draw a group for each of `places`, values of column `by`; in it a bar for each network or optimizer (`of`)."""
    colors = network_colors(style, names) if of == "network" else optimizer_colors(style)
    tables = {name: runs[runs[of] == name] for name in names}
    label = title if of == "network" else series_name
    series = [(label(name), values(table, places, column, by), colors[name]) for name, table in tables.items()]
    bars(axes, places, series, [disturbed_at(table, places, by) for table in tables.values()])


def values(
    table: pd.DataFrame, places: Sequence[str], column: str, by: str = "limit", missing: float = math.nan
) -> list[float]:
    """Return the column at each limit, or another column's value; `missing` where there is no run."""
    by_place = table.drop_duplicates(by).set_index(by)[column]
    return [float(by_place.get(place, missing)) for place in places]


_COLUMNS = 2
"""Panels in a row, as in the paper."""
_ALL_FAST_LINE = {"color": "#c0392b", "linestyle": (0, (4, 2)), "linewidth": 1.1}


def draw_fig7(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 7 of AutoTM: speed-up over a step whose intermediates are all slow, a panel for each network."""
    networks = list(dict.fromkeys(table["network"]))
    figure, axes_of = panels(len(networks), style, columns=min(_COLUMNS, len(networks)))
    for letter, axes, network in zip(string.ascii_lowercase, axes_of, networks, strict=False):
        _draw_network(axes, table[table["network"] == network], style)
        finish(axes, letter, title(network))
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, (
        f"{caption(table)} Bars: slow-down with all intermediates in slow memory (1:0) over the slow-down at the "
        "limit, each against the all-fast step of its own minutes."
    )


def _draw_network(axes: Axes, runs: pd.DataFrame, style: StyleConfig) -> None:
    slowest = runs.loc[runs["limit"] == str(ALL_SLOW), "slowdown"]
    if slowest.empty:
        raise BadInputError(
            f'figure 7: no run of {runs["network"].iloc[0]} at limit "{ALL_SLOW}"; add it to the limits'
        )
    most, disturbed = float(slowest.max()), is_disturbed(runs)
    # Where the run that all are divided by was disturbed, all bars are hollow.
    shown = runs.assign(speedup=most / runs["slowdown"], **{DISTURBED: disturbed | disturbed[slowest.idxmax()]})
    optimizers = list(dict.fromkeys(runs["optimizer"]))
    bars_of(axes, shown, optimizers, limits_of(runs, ends=False), "speedup", style, of="optimizer")
    axes.axhline(most, label="all fast", **_ALL_FAST_LINE)
    axes.set_ylim(0, math.ceil(most) + 0.2)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_ylabel("speed-up over all slow")
    axes.set_xlabel("slow : fast memory")


# Figure 8 of AutoTM: large networks, speed-up over memory-mode, where fast memory is a cache of slow memory.
#
# Real slow memory that programs address has no such cache. Speed-ups are then over what Linux does by itself, or over
# the simplest placement in the table.

_REMARKS = {
    "slowdown": "Bars: {name}'s slow-down over the optimizer's, each over the all-fast step of its own minutes.",
    "actual_runtime_median_s": "Bars: {name}'s median step over the optimizer's, timed one after the other.",
    "predicted_runtime_s": "Bars: {name}'s predicted step over the optimizer's.",
}
_WITHOUT_CACHE = "There is no {cached} here: fast memory is no cache of slow memory that programs address. "
_INSTEAD = (SPILLED, FIRST_TOUCH, "static")


def _compared_with(table: pd.DataFrame) -> str:
    """Return the optimizer that the others are compared with: memory-mode wherever it can run."""
    has_no_cache = bool(table["tier_reality"].isin(("real", "stand-in")).all())
    if not has_no_cache or CACHED in set(table["optimizer"]):
        return CACHED
    return next((name for name in _INSTEAD if name in set(table["optimizer"])), CACHED)


def speedups(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the other optimizers, with `speedup` over the one; both are disturbed if one is.

    Slow-downs are divided where every run of the network has one, which leaves out the drift of the machine's speed
    between two runs; else median steps; of modelled steps, predictions. All runs are at one limit.
    """
    runs = table[table["limit"] != str(ALL_FAST)].assign(**{DISTURBED: is_disturbed})
    require_one(runs, "limit")
    base, parts = _compared_with(runs), []
    for network, of_network in runs.groupby("network", sort=False):
        is_base, column = of_network["optimizer"] == base, _time_column(of_network)
        if not is_base.any() or is_base.all():
            raise BadInputError(
                f"figure 8: {network} was not run with optimizer '{base}' and another; add it to the workload's "
                "optimizers"
            )
        of_base, others = of_network[is_base].iloc[0], of_network[~is_base]
        speedup, disturbed = of_base[column] / others[column], others[DISTURBED] | of_base[DISTURBED]
        parts.append(others.assign(speedup=speedup, **{DISTURBED: disturbed}))
    return pd.concat(parts)


def draw_fig8(table: pd.DataFrame, style: StyleConfig, label: str = "speed-up over {name}") -> Drawn:
    """Draw a group of bars for each network, a bar for each optimizer but the one compared with; `label` is y's."""
    runs = speedups(table)
    runs["place"] = [
        f"{title(network)} ({batch})" for network, batch in zip(runs["network"], runs["batch"], strict=True)
    ]
    places, optimizers = (list(dict.fromkeys(runs[column])) for column in ("place", "optimizer"))
    figure, (axes,) = panels(1, style, widen=1.6)
    bars_of(axes, runs, optimizers, places, "speedup", style, of="optimizer", by="place")
    base = _compared_with(table[table["limit"] != str(ALL_FAST)])
    axes.axhline(1.0, color=GRAY, linewidth=0.8, label=series_name(base))
    axes.set_ylim(0, 1.1 * max(1.0, float(runs["speedup"].max())))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylabel(label.format(name=series_name(base)))
    axes.set_xlabel("network (batch)")
    limit = table.loc[table["limit"] != str(ALL_FAST), "limit"].iloc[0]
    finish(axes, "", f"Large networks, slow : fast memory {limit}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    described = modelled_caption(table) if is_modelled(table) else caption(table)
    without = "" if base == CACHED else _WITHOUT_CACHE.format(cached=CACHED)
    return figure, f"{described} {without}{_REMARKS[_time_column(table)].format(name=series_name(base))}"


def _time_column(runs: pd.DataFrame) -> str:
    """Return the column that speed-ups divide."""
    if is_modelled(runs):
        return "predicted_runtime_s"
    return "slowdown" if bool(runs["slowdown"].notna().all()) else "actual_runtime_median_s"


OPTIMIZED = ("static", "synchronous", "asynchronous")
_NAMED_ABOVE_PERCENT = 10.0
"""The caption names and explains larger errors one by one."""


def draw_fig11(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 11 of AutoTM: errors of predicted step times, a panel for each optimizer that predicts."""
    runs = table[table["optimizer"].isin(OPTIMIZED)]
    # Seconds drift with the machine's speed since its kernels were timed; slow-downs, timed in turn, do not.
    runs = runs.assign(
        error_percent=100 * (runs["predicted_slowdown"] / runs["slowdown"] - 1),
        with_drift_percent=100 * (runs["predicted_runtime_s"] / runs["actual_runtime_median_s"] - 1),
    )
    optimizers, networks = (list(dict.fromkeys(runs[column])) for column in ("optimizer", "network"))
    figure, axes_of = panels(len(optimizers), style)
    most = max(5.0, 1.1 * float(runs["error_percent"].abs().max()))
    for letter, axes, optimizer in zip(string.ascii_lowercase, axes_of, optimizers, strict=False):
        of_optimizer = runs[runs["optimizer"] == optimizer]
        places = limits_of(of_optimizer, ends=True)
        bars_of(axes, of_optimizer, networks, places, "error_percent", style)
        axes.axhline(0.0, color=GRAY, linewidth=0.6)
        axes.set_ylim(-most, most)
        axes.set_ylabel("error of the prediction, %")
        axes.set_xlabel("slow : fast memory")
        finish(axes, letter, series_name(optimizer))
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, f"{caption(table)} {_remark(runs)}"


def _remark(runs: pd.DataFrame) -> str:
    """Return the errors of undisturbed runs in words; those that are far off by name, and why."""
    runs = runs[~is_disturbed(runs)]
    size, with_drift = runs["error_percent"].abs(), runs["with_drift_percent"].abs()
    far = runs[size > _NAMED_ABOVE_PERCENT]
    named = "; ".join(
        f"{row['network']} {row['optimizer']} {row['limit']}: {row['error_percent']:+.1f} % ({explained_errors(row)})"
        for _, row in far.iterrows()
    )
    return (
        "Error of the predicted step, which is the all-fast step measured beside it and what the placement adds by "
        f"prediction: median size {size.median():.1f} %, largest {size.max():.1f} %. Of predicted seconds, in which is "
        "also the drift of the machine's speed since the kernels were timed: "
        f"median {with_drift.median():.1f} %, largest {with_drift.max():.1f} %."
        + (f" Above {_NAMED_ABOVE_PERCENT:.0f} %: {named}." if named else "")
    )


def explained_errors(row: pd.Series) -> str:
    """Return what the error of one run is made of.

    The error of a slow-down is that of two steps. The error of the planned step is divided among kernels and moves, as
    timed piece by piece; the time that its threads had no core, which nothing predicts, is told with it.
    """

    def more(measured: str, predicted: str) -> str:
        share = 100 * (row[measured] / row[predicted] - 1)
        return f"{abs(share):.1f} % {'longer' if share >= 0 else 'less'}"

    parts = [
        f"its step took {more('actual_runtime_median_s', 'predicted_runtime_s')} than predicted",
        f"the all-fast one {more('all_fast_runtime_s', 'all_fast_predicted_s')}",
    ]
    if row["kernels_s"] > 0:
        predicted_kernels_s = row["predicted_runtime_s"] - row["predicted_moves_s"]
        parts.append(f"kernels by {1e3 * (row['kernels_s'] - predicted_kernels_s):+.3g} ms")
    if pd.notna(row["moves_s"]):
        parts.append(f"moves by {1e3 * (row['moves_s'] - row['predicted_moves_s']):+.3g} ms")
    if pd.notna(row["waited_median_s"]):
        parts.append(f"its threads waited {1e3 * row['waited_median_s']:.3g} ms a step for cores that others held")
    return ", ".join(parts)


_LEAST_S = 1e-4
"""A log axis has no place for less."""
_BUILDING = {"linestyle": "none", "marker": "_", "markersize": 9, "color": "white", "markeredgewidth": 1.4}


def longest_solves(table: pd.DataFrame) -> pd.DataFrame:
    """Return, for each network and optimizer that searches, the limit that took longest, with `total_s`."""
    searched = table[table["solver_status"] != str(Status.NOT_OPTIMIZED)]
    total = searched.assign(total_s=searched["creation_s"] + searched["optimization_s"])
    return total.loc[total.groupby(["network", "optimizer"], sort=False)["total_s"].idxmax()]


def draw_ilp_times(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Time to build and solve the models, over all attempts: a bar for each network and optimizer that searches."""
    table = table.assign(**{DISTURBED: False, DISTURBED_BEFORE: ""})  # who held the cores says nothing of a search
    slowest = longest_solves(table)
    if slowest.empty:
        raise BadInputError("solution times: no run of an optimizer that searches (static, synchronous, asynchronous)")
    seconds = {column: slowest[column].clip(lower=_LEAST_S) for column in ("total_s", "creation_s")}
    slowest = slowest.assign(place=slowest["network"].map(title), **seconds)
    places, optimizers = (list(dict.fromkeys(slowest[column])) for column in ("place", "optimizer"))
    figure, (axes,) = panels(1, style, widen=1.4)
    bars_of(axes, slowest, optimizers, places, "total_s", style, of="optimizer", by="place")
    for name, container in zip(optimizers, axes.containers, strict=True):
        middles = [bar.get_x() + bar.get_width() / 2 for bar in container]
        axes.plot(middles, values(slowest[slowest["optimizer"] == name], places, "creation_s", "place"), **_BUILDING)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(slowest["creation_s"].min() / 2, slowest["total_s"].max() * 2)
    axes.set_ylabel("building and solving, s")
    finish(axes, "", "Time to find a placement (longest over the limits)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    which = ", ".join(f"{row['network']} {row['optimizer']} {row['limit']}" for _, row in slowest.iterrows())
    return figure, f"{caption(table)} White lines: building the model alone. Longest: {which}."
