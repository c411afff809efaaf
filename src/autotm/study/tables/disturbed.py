"""Runs that others disturbed to the end: drawn hollow, named in captions, left out of sums."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

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
