"""The picture of a sweep: slow-down against fast memory, with what is proven about it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn as sns

from autotm.model.plan import Status
from autotm.model.study import StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    count_bytes,
    finish,
    hollow_marks,
    machine_text,
    near_text,
    optimizer_colors,
    pages_text,
    panels,
    series_name,
    text_in_bytes,
    title,
)
from autotm.study.sweep.answers import ALLOWED
from autotm.study.sweep.table import kernels_word

_X, _MEASURED = "dram_limit_bytes", "measured_slowdown"
_GUIDE: dict[str, Any] = {"color": GRAY, "linewidth": 0.5, "linestyle": (0, (1, 3)), "zorder": 1}


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """One panel; limits that no placement can keep are a shaded margin.

    Raises:
        BadInputError: no row of the table has a plan.
    """
    kept = table[table["refused"] == ""].sort_values(_X)
    optimizer = str(kept["optimizer"].iloc[0])
    color = optimizer_colors(style)[optimizer]
    figure, (axes,) = panels(1, style, widen=1.3)
    is_searched = bool((kept["solver_status"] != str(Status.NOT_OPTIMIZED)).any())
    for allowed in ALLOWED:
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
    return figure, _caption(kept, is_searched=is_searched)


def _caption(kept: pd.DataFrame, *, is_searched: bool) -> str:
    first = kept.iloc[0]
    uncounted = float(first["uncounted_bytes"])
    beside = (
        f"Parameters, inputs and results, {text_in_bytes(uncounted)}, are in fast memory beside the limit. "
        if uncounted
        else "The limit counts parameters, inputs and results too. "
    )
    proof = f"Plans {near_text(float(kept['gap'].max()))} on the predicted time. " if is_searched else ""
    ran = kept[_MEASURED].notna().sum()
    runs = f"{ran} of {len(kept)} limits MEASURED, over the all-fast step in turn. " if ran else "Nothing was run. "
    return (
        f"{first['network']} (batch {first['batch']}), scale {first['scale']}; {machine_text(first.to_dict())}. Lines: "
        f"PREDICTED from {kernels_word(kept)} kernels, over the predicted all-fast step "
        f"({first['all_fast_predicted_s']:.3g} s). {proof}{pages_text(kept)}{runs}{beside}"
        f"Dotted: 1, 5 and 10 %. Seed {first['seed']}. {first['versions']}."
    )
