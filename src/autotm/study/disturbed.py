"""Runs that others disturbed to the end: drawn hollow, named in captions, left out of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

COLUMN = "disturbed"
"""Whether others held the cores in so many rounds of a run that these count: its times are too long."""


def marked(table: pd.DataFrame) -> pd.Series:
    """(rows,) whether each run is disturbed; none is in tables from before that was known, or of modelled steps."""
    if COLUMN not in table:
        return pd.Series(data=False, index=table.index)
    return table[COLUMN].astype(bool)


def at_limits(runs: pd.DataFrame, limits: Sequence[str]) -> list[bool]:
    """Whether the run at each limit is disturbed."""
    found = dict(zip(runs["limit"], marked(runs), strict=True))
    return [bool(found.get(limit, False)) for limit in limits]


def hollow_marks(axes: Axes, runs: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Empty the marks of disturbed runs, whose line and marks are drawn; `look` is that of the marks."""
    shown = runs[marked(runs)]
    if not shown.empty:
        axes.plot(shown[x], shown[y], linestyle="none", markerfacecolor="white", markeredgewidth=1.0, zorder=4, **look)


def disturbed_text(table: pd.DataFrame) -> str:
    """The caption's sentence that names disturbed runs; empty where there are none."""
    shown = table[marked(table)]
    if shown.empty:
        return ""
    named = "; ".join(f"{row['network']} {row['optimizer']} {row['limit']}" for _, row in shown.iterrows())
    return f"Hollow, too slow: others held the cores during {named}. "
