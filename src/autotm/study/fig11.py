"""Figure 11 of AutoTM: how far predicted step times are from measured ones."""

from __future__ import annotations

import string

import pandas as pd

from autotm.model.figures_config import StyleConfig
from autotm.study.comparison import bars, limits_of, series_name, title, values
from autotm.study.style import GRAY, Drawn, caption, finish, network_colors, panels

OPTIMIZED = ("static", "synchronous", "asynchronous")
_NAMED_ABOVE_PERCENT = 10.0


def errors_percent(table: pd.DataFrame) -> pd.DataFrame:
    """Runs of optimizers that place by prediction, with `error_percent`: 100 (predicted / measured slow-down - 1)."""
    runs = table[table["optimizer"].isin(OPTIMIZED)]
    return runs.assign(error_percent=100 * (runs["predicted_slowdown"] / runs["slowdown"] - 1))


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A panel for each optimizer that places by prediction, a bar for each network at each limit."""
    runs = errors_percent(table)
    optimizers, networks = (list(dict.fromkeys(runs[column])) for column in ("optimizer", "network"))
    figure, axes_of = panels(len(optimizers), style)
    shades = network_colors(style, networks)
    most = max(5.0, 1.1 * float(runs["error_percent"].abs().max()))
    for letter, axes, optimizer in zip(string.ascii_lowercase, axes_of, optimizers, strict=False):
        of_optimizer = runs[runs["optimizer"] == optimizer]
        places = limits_of(of_optimizer, ends=True)
        series = [
            (title(name), values(of_optimizer[of_optimizer["network"] == name], places, "error_percent"), shades[name])
            for name in networks
        ]
        bars(axes, places, series)
        axes.axhline(0.0, color=GRAY, linewidth=0.6)
        axes.set_ylim(-most, most)
        axes.set_ylabel("error of the prediction, %")
        axes.set_xlabel("slow : fast memory")
        finish(axes, letter, series_name(optimizer))
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, f"{caption(table)} {_remark(runs)}"


def _remark(runs: pd.DataFrame) -> str:
    """The errors in words; points that are far off by name."""
    size = runs["error_percent"].abs()
    far = runs[size > _NAMED_ABOVE_PERCENT]
    named = "; ".join(
        f"{row['network']} {row['optimizer']} {row['limit']}: {row['error_percent']:+.0f} %"
        for _, row in far.iterrows()
    )
    return (
        "Error of the predicted slow-down over all fast, which leaves out the drift of the machine's speed since the "
        f"kernels were timed: median size {size.median():.1f} %, largest {size.max():.1f} %."
        + (f" Above {_NAMED_ABOVE_PERCENT:.0f} %: {named}." if named else "")
    )
