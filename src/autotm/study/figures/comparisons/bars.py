"""Grouped bars, hollow where a run was disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

_GROUP_WIDTH = 0.8


def bars(
    axes: Axes,
    places: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], Any]],
    hollow: Sequence[Sequence[bool]] = (),
) -> None:
    """Grouped bars: one group for each place on x, one bar in it for each (label, heights, colour).

    `hollow` says of each bar, series by series, whether it is drawn as an outline, since its run was disturbed.
    """
    width = _GROUP_WIDTH / len(series)
    for number, (label, heights, color) in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * width
        middles = [place + shift for place in range(len(places))]
        drawn = axes.bar(middles, heights, 0.92 * width, color=color, label=label, linewidth=0)
        for bar, is_hollow in zip(drawn, hollow[number] if hollow else (), strict=False):
            if is_hollow:
                bar.set(facecolor="none", edgecolor=color, linewidth=1.0)
    axes.set_xticks(range(len(places)), places)
    axes.grid(visible=False, axis="x")


def values(table: pd.DataFrame, places: Sequence[str], column: str) -> list[float]:
    """The column at each limit; what was not run has no bar."""
    found = table.drop_duplicates("limit").set_index("limit")[column]
    return [float(found.get(place, float("nan"))) for place in places]
