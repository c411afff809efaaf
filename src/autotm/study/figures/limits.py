"""Figures of the cost of a limit on fast memory for one step: figure 10, its points one by one, and a sweep.

A table that lacks a run which a figure needs, or has runs of several steps, raises BadInputError.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.limit import ALL_FAST, ALL_SLOW
from autotm.model.plan import Status
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    count_bytes,
    finish,
    gap_text,
    hollow_marks,
    machine_text,
    optimizer_colors,
    pages_text,
    panels,
    series_name,
    text_in_bytes,
    title,
)
from autotm.study.setup import MOVER
from autotm.study.tables import SLOWDOWNS_ASKED, is_modelled, require_one

_WHOLE_TICKS_FROM = 3.0
"""An axis of slow-downs beyond this one has ticks at whole numbers only."""
_FAST_MEMORY = "fast_memory_bytes"
"""Column that x shows: the limit and what it does not count, which is in fast memory too."""
_OPERANDS = (("dram_input_fraction", "inputs", "o", "-"), ("dram_output_fraction", "outputs", "s", "--"))
_DIRECTIONS = (("bytes_moved_pmem", "fast → slow", "v", "-"), ("bytes_moved_dram", "slow → fast", "^", "--"))
_PREDICTED: dict[str, Any] = {"linestyle": (0, (1, 1)), "linewidth": 1.1}
_ENOUGH: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 0.8}
_EDGED: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5}


def draw_fig10(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 10, AutoTM's case study: what a limit costs, and what the placements do about it."""
    table, enough = with_fast_memory(table)
    figure, axes_of = panels(3, style)
    for axes, draw in zip(axes_of, (_draw_slowdown, _draw_traffic, _draw_movement), strict=True):
        draw(axes, table, style)
        _draw_memory_axis(axes, enough)
    return figure, caption(table)


def with_fast_memory(table: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Return the runs with `_FAST_MEMORY`, bytes, and the bytes of fast memory into which the whole step fits."""
    require_one(table, "network", "batch")
    enough = float((table["peak_live_bytes"] + table["uncounted_bytes"]).iloc[0])
    return table.assign(**{_FAST_MEMORY: table["dram_limit_bytes"] + table["uncounted_bytes"]}), enough


def _draw_memory_axis(axes: Axes, enough: float) -> None:
    """Draw what all panels share along x."""
    axes.axvline(enough, color=GRAY, zorder=1, **_ENOUGH)
    axes.set_xlabel(f"fast memory allowed, with I/O tensors ({count_bytes(axes.xaxis, enough)})")


def _draw_slowdown(axes: Axes, table: pd.DataFrame, style: StyleConfig) -> None:
    """Draw panel a: measured step time over the all-fast one; the plan's prediction beside it."""
    colors = optimizer_colors(style)
    axes.axhline(1.0, color=GRAY, linewidth=0.6)
    for optimizer, runs in table.groupby("optimizer", sort=False):
        color, name = colors[str(optimizer)], series_name(str(optimizer))
        look: dict[str, Any] = {"marker": "o", "color": color}
        sns.lineplot(runs, x=_FAST_MEMORY, y="slowdown", label=name, ax=axes, errorbar=None, **look)
        hollow_marks(axes, runs, _FAST_MEMORY, "slowdown", **look)
        axes.plot(runs[_FAST_MEMORY], runs["predicted_slowdown"], color=color, **_PREDICTED)
    axes.plot([], [], color=GRAY, label="predicted", **_PREDICTED)
    axes.plot([], [], color=GRAY, label="whole step fits", **_ENOUGH)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=bool(axes.get_ylim()[1] > _WHOLE_TICKS_FROM)))
    axes.set_ylabel("slow-down over all fast")
    axes.legend(loc="best")
    finish(axes, "a", "Performance")


def _draw_traffic(axes: Axes, table: pd.DataFrame, style: StyleConfig) -> None:
    """Draw panel b: share of the bytes that kernels read and write which are in fast memory."""
    colors = optimizer_colors(style)
    for optimizer, runs in table.groupby("optimizer", sort=False):
        for column, kind, marker, line in _OPERANDS:
            look = {"marker": marker, "linestyle": line, "color": colors[str(optimizer)], **_EDGED}
            axes.plot(runs[_FAST_MEMORY], runs[column], label=f"{series_name(str(optimizer))}: {kind}", **look)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_ylabel("kernel I/O in fast memory")
    axes.legend(loc="best")
    finish(axes, "b", "Where kernels read and write")


def _draw_movement(axes: Axes, table: pd.DataFrame, style: StyleConfig) -> None:
    """Draw panel c: bytes that synchronous moves copy in one step, by direction."""
    runs = table[table["optimizer"] == MOVER]
    for column, label, marker, line in _DIRECTIONS:
        look = {"marker": marker, "linestyle": line, "color": optimizer_colors(style)[MOVER], **_EDGED}
        axes.plot(runs[_FAST_MEMORY], runs[column], label=label, **look)
    most = float(runs[[column for column, *_ in _DIRECTIONS]].to_numpy().max(initial=1.0))
    axes.set_ylim(0.0, 1.05 * most)
    axes.set_ylabel(f"moved in one step ({count_bytes(axes.yaxis, most)})")
    axes.legend(loc="best", title=series_name(MOVER), alignment="left")
    finish(axes, "c", "Data moved")


_STEPS_OF_SLOWDOWN = 0.5
"""The axis of slow-downs ends at a multiple of it."""
_LABELS = {str(ALL_FAST): "all in fast memory", str(ALL_SLOW): "all in slow memory", None: series_name(MOVER)}


def draw_fig10a(table: pd.DataFrame, style: StyleConfig, limit: str | None = None) -> Drawn:
    """Draw figure 10a: the points of synchronous plans, or only the one at `limit`.

    The axes are those of all points, whatever is shown, so that such pictures follow each other in a talk.
    """
    everything, enough = with_fast_memory(table)
    everything = everything[everything["optimizer"] == MOVER]
    shown = everything if limit is None else everything[everything["limit"] == limit]
    if shown.empty:
        at = "" if limit is None else f' at limit "{limit}"'
        raise BadInputError(f"figure 10a: no run of optimizer '{MOVER}'{at}; add it to figures.fig10")
    figure, (axes,) = panels(1, style, widen=1.4)
    look = {"marker": "o", "markersize": 5, "color": optimizer_colors(style)[MOVER]}
    axes.plot(shown[_FAST_MEMORY], shown["slowdown"], label=_LABELS[limit], **look)
    hollow_marks(axes, shown, _FAST_MEMORY, "slowdown", **look)
    axes.axhline(1.0, color=GRAY, linewidth=0.6)
    most, widest = float(everything["slowdown"].max()), float(everything[_FAST_MEMORY].max())
    axes.set_ylim(0, _STEPS_OF_SLOWDOWN * math.ceil(1.1 * most / _STEPS_OF_SLOWDOWN))
    axes.set_xlim(0, 1.05 * widest)
    _draw_memory_axis(axes, enough)
    axes.set_ylabel("slow-down over all fast\n(lower is better)")
    axes.legend(loc="upper center")
    finish(axes, "", title(str(everything["network"].iloc[0])))
    return figure, f"{caption(shown)} Dashed: the whole step fits."


_X, _MEASURED = "dram_limit_bytes", "measured_slowdown"
_GUIDE: dict[str, Any] = {"color": GRAY, "linewidth": 0.5, "linestyle": (0, (1, 3)), "zorder": 1}


def draw_sweep(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw slow-down against fast memory, with what is proven about it. Some row of the table has a plan.

    Limits that no placement can keep are a shaded margin.
    """
    kept = table[table["refused"] == ""].sort_values(_X)
    optimizer = str(kept["optimizer"].iloc[0])
    color = optimizer_colors(style)[optimizer]
    figure, (axes,) = panels(1, style, widen=1.3)
    is_searched = bool((kept["solver_status"] != str(Status.NOT_OPTIMIZED)).any())
    for allowed in SLOWDOWNS_ASKED:
        axes.axhline(1 + allowed, **_GUIDE)
    if is_searched:
        # A bound holds for all smaller limits, too, and for no larger one: steps, no slopes.
        look = {"color": color, "alpha": 0.12, "linewidth": 0, "label": "ruled out (proven bound)"}
        axes.fill_between(kept[_X], 1.0, kept["bound_slowdown"], step="pre", **look)
    sns.lineplot(kept, x=_X, y="predicted_slowdown", marker="o", color=color, label="predicted", ax=axes, errorbar=None)
    if kept[_MEASURED].notna().any():
        marks = {"marker": "s", "color": color}
        axes.plot(kept[_X], kept[_MEASURED], linestyle="none", label="measured", **marks)
        hollow_marks(axes, kept, _X, _MEASURED, **marks)
    smallest = table["smallest_bytes"].max()
    if pd.notna(smallest):
        axes.axvspan(0, smallest, color=GRAY, alpha=0.2, linewidth=0, label="too little for any placement")
    axes.set_xlim(left=0)
    axes.set_xlabel(f"fast memory allowed ({count_bytes(axes.xaxis, float(kept[_X].max()))})")
    axes.set_ylabel("slow-down over all fast")
    axes.legend(loc="best")
    finish(axes, "", f"{title(str(kept['network'].iloc[0]))}, {series_name(optimizer)}")
    return figure, _sweep_caption(kept, is_searched=is_searched)


def _sweep_caption(kept: pd.DataFrame, *, is_searched: bool) -> str:
    first, kernels = kept.iloc[0], "modelled" if is_modelled(kept) else "measured"
    uncounted = float(first["uncounted_bytes"])
    counted = (
        f"Parameters, inputs and results, {text_in_bytes(uncounted)}, are in fast memory beside the limit. "
        if uncounted
        else "The limit counts parameters, inputs and results too. "
    )
    proof = f"Plans {gap_text(float(kept['gap'].max()))} on the predicted time. " if is_searched else ""
    ran = kept[_MEASURED].notna().sum()
    runs = f"{ran} of {len(kept)} limits MEASURED, over the all-fast step in turn. " if ran else "Nothing was run. "
    return (
        f"{first['network']} (batch {first['batch']}), scale {first['scale']}; {machine_text(first.to_dict())}. Lines: "
        f"PREDICTED from {kernels} kernels, over the predicted all-fast step "
        f"({first['all_fast_predicted_s']:.3g} s). {proof}{pages_text(kept)}{runs}{counted}"
        f"Dotted: 1, 5 and 10 %. Seed {first['seed']}. {first['versions']}."
    )
