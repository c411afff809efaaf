"""Panels in a row or a grid, their titles, and axes that count in bytes."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from autotm.model.study import StyleConfig
from autotm.study.drawing.look import GRAY
from autotm.study.tables import marked

CM_PER_INCH = 2.54


_UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


def panels(count: int, style: StyleConfig, *, widen: float = 1.0) -> tuple[Figure, list[Axes]]:
    """A row of panels, `widen` times as wide as usual, with room for a caption below."""
    return grid(count, count, style, widen=widen)


def grid(count: int, columns: int, style: StyleConfig, *, widen: float = 1.0) -> tuple[Figure, list[Axes]]:
    """Panels row by row, `columns` in each; places of the last row that no panel needs stay empty."""
    rows = -(-count // columns)
    width, height = widen * style.panel_width_cm / CM_PER_INCH, style.panel_height_cm / CM_PER_INCH
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1).tolist()
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def finish(axes: Axes, letter: str, title: str) -> None:
    """Panel letter (where there are several panels) and title; no lines where there is no data."""
    axes.set_title(f"({letter})  {title}" if letter else title, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=2.5, width=0.6, color=GRAY)


def count_bytes(axis: Axis, largest: float) -> str:
    """Let an axis of bytes count in the unit that keeps `largest` above 0.1 of it; returns the unit."""
    unit = _unit(largest)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / _UNITS[unit]:g}"))
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    return unit


def text_in_bytes(size: float) -> str:
    """A number of bytes for people, three digits, in the unit that keeps it above 0.1."""
    unit = _unit(size)
    return f"{size / _UNITS[unit]:.3g} {unit}"


def _unit(largest: float) -> str:
    return next((name for name, size in _UNITS.items() if largest >= 0.1 * size), "B")


def hollow_marks(axes: Axes, runs: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Empty the marks of disturbed runs, whose line and marks are drawn; `look` is that of the marks."""
    shown = runs[marked(runs)]
    if not shown.empty:
        axes.plot(shown[x], shown[y], linestyle="none", markerfacecolor="white", markeredgewidth=1.0, zorder=4, **look)
