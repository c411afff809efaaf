"""Runs that others disturbed to the end: drawn hollow, named in captions, left out of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

COLUMN = "disturbed"
"""Whether others held the cores in so many rounds of a run that these count: its times are too long."""
BEFORE = "disturbed_before"
"""What a run's plan was made from that was measured while others held the cores, in words."""
BEFORE_SEPARATOR = "; "


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
    """The caption's sentences that name disturbed runs, and what plans were made from; empty where there are none."""
    shown, sentences = table[marked(table)], ""
    if not shown.empty:
        named = "; ".join(f"{row['network']} {row['optimizer']} {row['limit']}" for _, row in shown.iterrows())
        sentences = f"Hollow, too slow: others held the cores during {named}. "
    texts = table[BEFORE].dropna() if BEFORE in table else ()
    if named := "; ".join(dict.fromkeys(one for text in texts for one in text.split(BEFORE_SEPARATOR) if one)):
        sentences += f"Others held the cores, too, while what predictions are made from was measured: {named}. "
    return sentences
