"""Figure 10, AutoTM's case study: what a limit on fast memory costs, and what the placements do about it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from autotm.model.study import StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    count_bytes,
    finish,
    hollow_marks,
    optimizer_colors,
    panels,
    series_name,
)
from autotm.study.setup import MOVER
from autotm.study.tables import require_one

_WHOLE_TICKS_FROM = 3.0
FAST_MEMORY = "fast_memory_bytes"
_OPERANDS = (("dram_input_fraction", "inputs", "o", "-"), ("dram_output_fraction", "outputs", "s", "--"))
_DIRECTIONS = (("bytes_moved_pmem", "fast → slow", "v", "-"), ("bytes_moved_dram", "slow → fast", "^", "--"))
_PREDICTED: dict[str, Any] = {"linestyle": (0, (1, 1)), "linewidth": 1.1}
_ENOUGH: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 0.8}


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Three panels over the fast memory allowed.

    Raises:
        BadInputError: the runs are not one case study.
    """
    table, enough = with_fast_memory(table)
    figure, (slowdown, traffic, movement) = panels(3, style)
    _draw_slowdown(slowdown, table, style)
    _draw_traffic(traffic, table, style)
    _draw_movement(movement, table, style)
    for axes in (slowdown, traffic, movement):
        draw_memory_axis(axes, enough)
    return figure, caption(table)


def with_fast_memory(table: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The runs with what x shows as column `FAST_MEMORY`, bytes, and the x at which the whole step fits.

    Both hold parameters, inputs and results, which are in fast memory whatever the limit, or which it counts.

    Raises:
        BadInputError: the runs are not one case study.
    """
    require_one(table, "network", "batch")
    enough = float((table["peak_live_bytes"] + table["uncounted_bytes"]).iloc[0])
    return table.assign(**{FAST_MEMORY: table["dram_limit_bytes"] + table["uncounted_bytes"]}), enough


def draw_memory_axis(axes: Axes, enough: float) -> None:
    """What all panels share along x."""
    axes.axvline(enough, color=GRAY, zorder=1, **_ENOUGH)
    axes.set_xlabel(f"fast memory allowed, with I/O tensors ({count_bytes(axes.xaxis, enough)})")


def _draw_slowdown(axes: Axes, table: pd.DataFrame, style: StyleConfig) -> None:
    """Panel a: measured step time over the all-fast one; the plan's prediction beside it."""
    colors = optimizer_colors(style)
    axes.axhline(1.0, color=GRAY, linewidth=0.6)
    for optimizer, runs in table.groupby("optimizer", sort=False):
        color = colors[str(optimizer)]
        sns.lineplot(
            runs,
            x=FAST_MEMORY,
            y="slowdown",
            marker="o",
            color=color,
            label=series_name(str(optimizer)),
            ax=axes,
            errorbar=None,
        )
        hollow_marks(axes, runs, FAST_MEMORY, "slowdown", marker="o", color=color)
        axes.plot(runs[FAST_MEMORY], runs["predicted_slowdown"], color=color, **_PREDICTED)
    axes.plot([], [], color=GRAY, label="predicted", **_PREDICTED)
    axes.plot([], [], color=GRAY, label="whole step fits", **_ENOUGH)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=bool(axes.get_ylim()[1] > _WHOLE_TICKS_FROM)))
    axes.set_ylabel("slow-down over all fast")
    axes.legend(loc="best")
    finish(axes, "a", "Performance")


def _draw_traffic(axes: Axes, table: pd.DataFrame, style: StyleConfig) -> None:
    """Panel b: share of the bytes that kernels read and write which are in fast memory."""
    colors = optimizer_colors(style)
    for optimizer, runs in table.groupby("optimizer", sort=False):
        for column, kind, marker, line in _OPERANDS:
            look = {"marker": marker, "linestyle": line, "color": colors[str(optimizer)], "markeredgecolor": "white"}
            axes.plot(
                runs[FAST_MEMORY],
                runs[column],
                label=f"{series_name(str(optimizer))}: {kind}",
                markeredgewidth=0.5,
                **look,
            )
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_ylabel("kernel I/O in fast memory")
    axes.legend(loc="best")
    finish(axes, "b", "Where kernels read and write")


def _draw_movement(axes: Axes, table: pd.DataFrame, style: StyleConfig) -> None:
    """Panel c: bytes that synchronous moves copy in one step, by direction."""
    runs = table[table["optimizer"] == MOVER]
    for column, label, marker, line in _DIRECTIONS:
        look = {"marker": marker, "linestyle": line, "color": optimizer_colors(style)[MOVER]}
        axes.plot(runs[FAST_MEMORY], runs[column], label=label, markeredgecolor="white", markeredgewidth=0.5, **look)
    most = float(runs[[column for column, *_ in _DIRECTIONS]].to_numpy().max(initial=1.0))
    axes.set_ylim(0.0, 1.05 * most)
    axes.set_ylabel(f"moved in one step ({count_bytes(axes.yaxis, most)})")
    axes.legend(loc="best", title=series_name(MOVER), alignment="left")
    finish(axes, "c", "Data moved")
