"""AutoTM's front figure: steps an hour of one network, from all slow over two mixtures of memory to all fast."""

from __future__ import annotations

import pandas as pd

from autotm.model.files import BadInputError
from autotm.model.study import ALL_FAST, ALL_SLOW, StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    limits_of,
    optimizer_colors,
    panels,
    series_name,
    text_in_bytes,
    title,
)
from autotm.study.setup import FIRST_TOUCH, MOVER
from autotm.study.tables import COLUMN, require_one

_SECONDS_PER_HOUR = 3600
_SEPARATORS = (0.5, 2.5)
_HEADINGS = ((0.0, "lowest cost"), (1.5, "middle"), (3.0, "highest cost"))


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Four bars; the memory that each took stands below it.

    Raises:
        BadInputError: runs of several networks, or one of the four runs is missing.
    """
    require_one(table, "network")
    limits = limits_of(table, ends=False)
    if len(limits) != 1:
        raise BadInputError(f"front figure: runs at one limit between all slow and all fast, not {limits}")
    colors = optimizer_colors(style)
    shown = (
        ("all slow", MOVER, ALL_SLOW, colors["all-slow"]),
        (FIRST_TOUCH, FIRST_TOUCH, limits[0], colors[FIRST_TOUCH]),
        (series_name(MOVER), MOVER, limits[0], colors[MOVER]),
        ("all fast", MOVER, ALL_FAST, colors["all-fast"]),
    )
    runs = [_run(table, optimizer, limit) for _, optimizer, limit, _ in shown]
    all_fast_s = float(table["all_fast_runtime_s"].median())
    rates = [_SECONDS_PER_HOUR / (all_fast_s * float(run["slowdown"])) for run in runs]
    figure, (axes,) = panels(1, style, widen=1.4)
    drawn = axes.bar(range(len(shown)), rates, 0.7, color=[color for *_, color in shown], linewidth=0)
    for bar, run, (*_, color) in zip(drawn, runs, shown, strict=True):
        if bool(run.get(COLUMN, False)):
            bar.set(facecolor="none", edgecolor=color, linewidth=1.0)
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


def _run(table: pd.DataFrame, optimizer: str, limit: str) -> pd.Series:
    found = table[(table["optimizer"] == optimizer) & (table["limit"] == limit)]
    if found.empty:
        raise BadInputError(f"front figure: no run of optimizer '{optimizer}' at limit \"{limit}\"")
    return found.iloc[0]


def _memory(run: pd.Series) -> str:
    fast = text_in_bytes(float(run["dram_alloc_bytes"] + run["uncounted_bytes"]))
    slow = float(run["pmem_alloc_bytes"])
    return f"{fast} fast" + (f"\n+ {text_in_bytes(slow)} slow" if slow else "")
