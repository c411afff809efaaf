"""Figure 10a a point at a time, as one shows it in a talk: the all-fast step, the all-slow one, then all limits."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes

from autotm.model.files import BadInputError
from autotm.model.study import ALL_FAST, ALL_SLOW, StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    hollow_marks,
    optimizer_colors,
    panels,
    series_name,
    title,
)
from autotm.study.figures.fig10 import FAST_MEMORY, draw_memory_axis, with_fast_memory
from autotm.study.setup import MOVER

_STEPS_OF_SLOWDOWN = 0.5


def draw_all_fast(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """The point with everything in fast memory alone.

    Raises:
        BadInputError: there is no such run.
    """
    return _draw(table, style, ALL_FAST, "all in fast memory")


def draw_all_slow(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """The point with all intermediates in slow memory alone.

    Raises:
        BadInputError: there is no such run.
    """
    return _draw(table, style, ALL_SLOW, "all in slow memory")


def draw_all_limits(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """All points of synchronous plans.

    Raises:
        BadInputError: there are none.
    """
    return _draw(table, style, None, series_name(MOVER))


def _draw(table: pd.DataFrame, style: StyleConfig, limit: str | None, label: str) -> Drawn:
    """One panel; whatever it shows, its axes are those of all points, so that such pictures follow each other."""
    everything, enough = with_fast_memory(table)
    everything = everything[everything["optimizer"] == MOVER]
    shown = everything if limit is None else everything[everything["limit"] == limit]
    if shown.empty:
        at = "" if limit is None else f' at limit "{limit}"'
        raise BadInputError(f"figure 10a: no run of optimizer '{MOVER}'{at}; add it to figures.fig10")
    figure, (axes,) = panels(1, style, widen=1.4)
    look = {"marker": "o", "markersize": 5, "color": optimizer_colors(style)[MOVER]}
    axes.plot(shown[FAST_MEMORY], shown["slowdown"], label=label, **look)
    hollow_marks(axes, shown, FAST_MEMORY, "slowdown", **look)
    axes.axhline(1.0, color=GRAY, linewidth=0.6)
    _fit(axes, everything)
    draw_memory_axis(axes, enough)
    axes.set_ylabel("slow-down over all fast\n(lower is better)")
    axes.legend(loc="upper center")
    finish(axes, "", title(str(everything["network"].iloc[0])))
    return figure, f"{caption(shown)} Dashed: the whole step fits."


def _fit(axes: Axes, everything: pd.DataFrame) -> None:
    most, widest = float(everything["slowdown"].max()), float(everything[FAST_MEMORY].max())
    axes.set_ylim(0, _STEPS_OF_SLOWDOWN * math.ceil(1.1 * most / _STEPS_OF_SLOWDOWN))
    axes.set_xlim(0, 1.05 * widest)
