"""Figures of performance against the price of memory: figure 9, points or bars of runs, the front figure.

A table that lacks a run which a figure needs raises BadInputError, whose message names it.
"""

from __future__ import annotations

import pandas as pd

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.limit import ALL_FAST, ALL_SLOW
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    network_colors,
    optimizer_colors,
    panels,
    prices_remark,
    series_name,
    text_in_bytes,
    title,
)
from autotm.study.figures.comparisons import bars_of, outline, values
from autotm.study.setup import FIRST_TOUCH, MOVER
from autotm.study.tables import DISTURBED, is_disturbed, limits_of, require_one


def _planned(figure: str, table: pd.DataFrame) -> pd.DataFrame:
    """Return the synchronous runs of a table with their `performance`; refuse one that has none for the figure."""
    runs = table[table["optimizer"] == MOVER]
    if runs.empty:
        raise BadInputError(f"{figure}: no run of optimizer '{MOVER}'; add it to the workload's optimizers")
    return runs.assign(performance=1.0 / runs["slowdown"])


_ORDER = ("vgg19", "densenet264", "resnet200", "inception_v4")
"""Order of the bars in the paper; further networks follow as they come."""
_MARK_WIDTH = 0.9
"""Length of a price's mark: about that of a group of bars."""


def draw_fig9(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 9 of AutoTM: performance of each network at each ratio as bars; prices (`with_prices`) as marks."""
    runs = _planned("figure 9", table[table["ratio_price"].notna()])
    places = [text for text in limits_of(runs, ends=True) if text != str(ALL_FAST)]
    networks = sorted(dict.fromkeys(runs["network"]), key=lambda name: (*_ORDER, name).index(name))
    figure, (axes,) = panels(1, style, widen=1.6)
    bars_of(axes, runs, networks, places, "performance", style)
    prices = values(runs, places, "ratio_price")
    left, right = ([place + side * _MARK_WIDTH / 2 for place in range(len(places))] for side in (-1, 1))
    axes.hlines(prices, left, right, color=GRAY, linewidth=1.4, zorder=3, label="price of memory")
    axes.set_ylim(0, max(1.05, 1.05 * float(runs["performance"].max())))
    axes.set_ylabel("share of all fast")
    axes.set_xlabel("slow : fast memory")
    finish(axes, "", f"Performance ({MOVER}) and price of memory")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, f"{caption(table)} {prices_remark(runs)}"


_MARKS = ("v", "s", "D", "^", "o", "P", "X", "<", ">", "*")
_MOST = 1.06
"""Axes end 6 % beyond the largest value, so that marks are not cut."""


def draw_price_performance(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw a line a network, a mark a limit; on the diagonal, memory is as much cheaper as steps are slower."""
    runs = _planned("price-performance", table)
    figure, (axes,) = panels(1, style, widen=1.4)
    networks, limits = list(dict.fromkeys(runs["network"])), limits_of(runs, ends=True)
    colors = network_colors(style, networks)
    axes.plot([0, _MOST], [0, _MOST], color=GRAY, linewidth=0.8, linestyle=(0, (4, 2)), label="break even")
    for name in networks:
        of_network = runs[runs["network"] == name]
        axes.plot(of_network["pools_price"], of_network["performance"], color=colors[name], label=title(name))
    for number, limit in enumerate(limits):
        at_limit, look = runs[runs["limit"] == limit], {"linestyle": "none", "marker": _MARKS[number % len(_MARKS)]}
        edges = [colors[name] for name in at_limit["network"]]
        fills = ["white" if is_marked else edge for edge, is_marked in zip(edges, is_disturbed(at_limit), strict=True)]
        points = at_limit["pools_price"], at_limit["performance"]
        axes.scatter(*points, facecolors=fills, edgecolors=edges, marker=look["marker"], s=18, zorder=3)
        axes.plot([], [], color=GRAY, label=limit, **look)
    axes.set_xlim(0, _MOST * max(1.0, float(runs["pools_price"].max())))
    axes.set_ylim(0, _MOST * max(1.0, float(runs["performance"].max())))
    axes.set_xlabel("price of memory, share of all fast")
    axes.set_ylabel("performance, share of all fast")
    finish(axes, "", f"Price and performance ({MOVER})")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, (
        f"{caption(runs)} {prices_remark(runs)} Prices are those of the memory that a run took. Above the dashed line "
        "a step loses less than its memory saves."
    )


def draw_cost_performance(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the price of memory over performance: below 1, mixed memory gives more for its price than fast memory."""
    runs = _planned("cost-performance", table)
    runs = runs.assign(ratio=runs["pools_price"] * runs["slowdown"])
    places, networks = limits_of(runs, ends=True), list(dict.fromkeys(runs["network"]))
    figure, (axes,) = panels(1, style, widen=1.4)
    bars_of(axes, runs, networks, places, "ratio", style)
    axes.axhline(1.0, color=GRAY, linewidth=0.8, label="all fast")
    axes.set_ylim(0, 1.1 * max(1.0, float(runs["ratio"].max())))
    axes.set_ylabel("price over performance\n(lower is better)")
    axes.set_xlabel("slow : fast memory")
    finish(axes, "", f"Price of memory over performance ({MOVER})")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, f"{caption(runs)} {prices_remark(runs)} Prices are those of the memory that a run took."


_SECONDS_PER_HOUR = 3600
_SEPARATORS = (0.5, 2.5)
_HEADINGS = ((0.0, "lowest cost"), (1.5, "middle"), (3.0, "highest cost"))


def draw_front(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw AutoTM's front figure: steps an hour of a network, all slow, with two mixtures of memory and all fast."""
    require_one(table, "network")
    limits = limits_of(table, ends=False)
    if len(limits) != 1:
        raise BadInputError(f"front figure: runs at one limit between all slow and all fast, not {limits}")
    colors = optimizer_colors(style)
    shown = (
        ("all slow", MOVER, str(ALL_SLOW), colors["all-slow"]),
        (FIRST_TOUCH, FIRST_TOUCH, limits[0], colors[FIRST_TOUCH]),
        (series_name(MOVER), MOVER, limits[0], colors[MOVER]),
        ("all fast", MOVER, str(ALL_FAST), colors["all-fast"]),
    )
    runs = []
    for _, optimizer, limit, _ in shown:
        of_point = table[(table["optimizer"] == optimizer) & (table["limit"] == limit)]
        if of_point.empty:
            raise BadInputError(f"front figure: no run of optimizer '{optimizer}' at limit \"{limit}\"")
        runs.append(of_point.iloc[0])
    all_fast_s = float(table["all_fast_runtime_s"].median())
    rates = [_SECONDS_PER_HOUR / (all_fast_s * float(run["slowdown"])) for run in runs]
    figure, (axes,) = panels(1, style, widen=1.4)
    drawn = axes.bar(range(len(shown)), rates, 0.7, color=[color for *_, color in shown], linewidth=0)
    outline(drawn, [bool(run.get(DISTURBED, False)) for run in runs])
    labels = [f"{name}\n{_memory(run)}" for (name, *_), run in zip(shown, runs, strict=True)]
    axes.set_xticks(range(len(shown)), labels)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.set_ylim(0, 1.18 * max(rates))
    for place in _SEPARATORS:
        axes.axvline(place, color=GRAY, linewidth=0.8, linestyle=(0, (4, 2)))
    for place, text in _HEADINGS:
        axes.text(place, 0.97, text, transform=axes.get_xaxis_transform(), ha="center", va="top", color=GRAY)
    axes.set_ylabel("training steps an hour")
    finish(axes, "", f"{title(str(table['network'].iloc[0]))}, slow : fast memory {limits[0]} between the ends")
    return figure, (
        f"{caption(table)} Bars: an hour over the median all-fast step ({all_fast_s:.3g} s), divided by the run's "
        "slow-down against the all-fast step of its own minutes. Below: memory taken, parameters, inputs and results "
        "included."
    )


def _memory(run: pd.Series) -> str:
    fast = text_in_bytes(float(run["dram_alloc_bytes"] + run["uncounted_bytes"]))
    slow = float(run["pmem_alloc_bytes"])
    return f"{fast} fast" + (f"\n+ {text_in_bytes(slow)} slow" if slow else "")
