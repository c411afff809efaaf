"""How little fast memory a step needs, in words, from the table of a sweep."""

from __future__ import annotations

import pandas as pd

from autotm.model.plan import Status

ALLOWED = (0.01, 0.05, 0.1)
"""Slow-downs that are asked about, as shares of the all-fast step."""


def answers(table: pd.DataFrame) -> list[str]:
    """A sentence for each of `ALLOWED`: the least memory tried that is enough, and what is proven not to be."""
    kept = table[table["refused"] == ""]
    return [_answer(kept, allowed) for allowed in ALLOWED]


def _answer(kept: pd.DataFrame, allowed: float) -> str:
    slower = f"at most {allowed:.0%} slower than all fast".replace("%", " %")
    enough = kept[kept["predicted_slowdown"] <= 1 + allowed]
    short = _too_little(kept, allowed)
    if enough.empty:
        return f"With none of these limits the step is predicted to be {slower}{short}."
    least = enough.loc[enough["dram_limit_bytes"].idxmin()]
    measured = least["measured_slowdown"]
    told = "" if pd.isna(measured) else f" (measured: {measured - 1:+.1%})".replace("%", " %")
    return f"With {_memory(least)} the step is predicted to be {slower}{told}{short}."


def _too_little(kept: pd.DataFrame, allowed: float) -> str:
    """What the bounds rule out; nothing where the optimizer searches for no best plan, and has no bound."""
    proven = kept[(kept["bound_slowdown"] > 1 + allowed) & (kept["solver_status"] != str(Status.NOT_OPTIMIZED))]
    if proven.empty:
        return ""
    most = proven.loc[proven["dram_limit_bytes"].idxmax()]
    name = most["optimizer"]
    if not most["dram_limit_bytes"]:
        return f"; proven: with none at all, no {name} plan is"
    return f"; proven: with {_size(most)} or less, no {name} plan is"


def _memory(row: pd.Series) -> str:
    share = f"{100 * row['share_of_peak']:.3g} %"
    return f"{_size(row)} of fast memory ({share} of the step's peak)" if row["dram_limit_bytes"] else "no fast memory"


def _size(row: pd.Series) -> str:
    return f"{row['dram_limit_bytes'] / 1e6:.4g} MB"
