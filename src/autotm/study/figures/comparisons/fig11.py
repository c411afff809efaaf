"""Figure 11 of AutoTM: how far predicted step times are from measured ones."""

from __future__ import annotations

import string

import pandas as pd

from autotm.model.study import StyleConfig
from autotm.study.drawing import GRAY, Drawn, caption, finish, limits_of, network_colors, panels, series_name, title
from autotm.study.figures.comparisons.bars import bars, values
from autotm.study.tables import at_limits, marked

OPTIMIZED = ("static", "synchronous", "asynchronous")
_NAMED_ABOVE_PERCENT = 10.0


def errors_percent(table: pd.DataFrame) -> pd.DataFrame:
    """Runs of optimizers that place by prediction, with `error_percent`: 100 (predicted / measured slow-down - 1).

    `with_drift_percent` is the same of predicted and measured seconds: in it is also how much faster or slower the
    machine was than when the kernels were timed.
    """
    runs = table[table["optimizer"].isin(OPTIMIZED)]
    return runs.assign(
        error_percent=100 * (runs["predicted_slowdown"] / runs["slowdown"] - 1),
        with_drift_percent=100 * (runs["predicted_runtime_s"] / runs["actual_runtime_median_s"] - 1),
    )


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
        hollow = [at_limits(of_optimizer[of_optimizer["network"] == name], places) for name in networks]
        bars(axes, places, series, hollow)
        axes.axhline(0.0, color=GRAY, linewidth=0.6)
        axes.set_ylim(-most, most)
        axes.set_ylabel("error of the prediction, %")
        axes.set_xlabel("slow : fast memory")
        finish(axes, letter, series_name(optimizer))
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, f"{caption(table)} {_remark(runs)}"


def _remark(runs: pd.DataFrame) -> str:
    """The errors of undisturbed runs in words; those that are far off by name, and why."""
    runs = runs[~marked(runs)]
    size, with_drift = runs["error_percent"].abs(), runs["with_drift_percent"].abs()
    far = runs[size > _NAMED_ABOVE_PERCENT]
    named = "; ".join(
        f"{row['network']} {row['optimizer']} {row['limit']}: {row['error_percent']:+.1f} % ({explained(row)})"
        for _, row in far.iterrows()
    )
    return (
        "Error of the predicted step, which is the all-fast step measured beside it and what the placement adds by "
        f"prediction: median size {size.median():.1f} %, largest {size.max():.1f} %. Of predicted seconds, in which is "
        "also the drift of the machine's speed since the kernels were timed: "
        f"median {with_drift.median():.1f} %, largest {with_drift.max():.1f} %."
        + (f" Above {_NAMED_ABOVE_PERCENT:.0f} %: {named}." if named else "")
    )


def explained(row: pd.Series) -> str:
    """What the error of one run is made of, as its record tells.

    The error of a slow-down is that of two steps. That of the planned one is then divided among kernels and moves, as
    timed piece by piece, and set beside how long its threads had no core: what others took was not predicted.
    """
    step_s, all_fast_s = row["actual_runtime_median_s"], row["all_fast_runtime_s"]
    parts = [
        f"its step took {_more(step_s, row['predicted_runtime_s'])} than predicted",
        f"the all-fast one {_more(all_fast_s, row['all_fast_predicted_s'])}",
    ]
    if row["kernels_s"] > 0:
        predicted_kernels_s = row["predicted_runtime_s"] - row["predicted_moves_s"]
        parts.append(f"kernels by {1e3 * (row['kernels_s'] - predicted_kernels_s):+.3g} ms")
    if pd.notna(row["moves_s"]):
        parts.append(f"moves by {1e3 * (row['moves_s'] - row['predicted_moves_s']):+.3g} ms")
    if pd.notna(row["waited_median_s"]):
        parts.append(f"its threads waited {1e3 * row['waited_median_s']:.3g} ms a step for cores that others held")
    return ", ".join(parts)


def _more(found: float, expected: float) -> str:
    share = 100 * (found / expected - 1)
    return f"{abs(share):.1f} % {'longer' if share >= 0 else 'less'}"
