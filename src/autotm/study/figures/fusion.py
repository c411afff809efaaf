"""Figures of fusion: how far TVM's fusion is from the best grouping of operators, and whether sums of kernels tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns

from autotm.model.config import StyleConfig
from autotm.model.files import load_with_provenance
from autotm.model.fusion import FusionOptimum, FusionSearch, FusionTimes, GroupingTimes, Kind
from autotm.model.fusion_policy import FusionBench, FusionPromises
from autotm.study.drawing import GRAY, Drawn, finish, panels
from autotm.study.tables import versions_text

AGAIN = "best, again"
"""The fastest grouping, measured once more: the fastest of many is so by luck, too."""
STEPS = ("training", "inference")
Z = 1.96
"""Standard errors on either side of a 95 % interval."""
_DRAWS = 10_000
"""Times that networks are drawn anew for an interval of a mean over them."""


def table_of_optima(optima: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each grouping that was measured; columns are described in `study/columns.py`.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    rows = []
    for path in optima:
        found, source = load_with_provenance(path, "fusion_optimum", FusionOptimum)
        rows += [_row(found, one, one.kind, one.times, source) for one in found.groupings]
        if found.best_times is not None:
            rows.append(_row(found, found.groupings[found.best], AGAIN, found.best_times, source))
    return pd.DataFrame(rows)


def _row(
    found: FusionOptimum, one: GroupingTimes, grouping: str, times: FusionTimes | None, source: Mapping[str, Any]
) -> dict[str, Any]:
    return measured_columns(found, times, source) | {
        "grouping": grouping,
        "operators": found.operators,
        "searched_operators": sum(each.operators * each.alike for each in found.regions if not each.failure),
        "left_operators": sum(each.operators * each.alike for each in found.regions if each.failure),
        "kernels": one.kernels,
        "default_kernels": found.default_kernels,
        "kernels_timed": found.kernels_timed,
        "sum_ratio": one.sum_s / found.default_sum_s,
        "sum_error": math.nan if times is None else found.default_sum_s / times.default_s - 1,
        "peak_ratio": one.peak_bytes / max(found.default_peak_bytes, 1),
        "failure": one.failure,
    }


def measured_columns(
    of: FusionOptimum | FusionSearch | FusionPromises | FusionBench,
    times: FusionTimes | None,
    source: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what every table of fusion says of a grouping: whose step it is, its times, and where they are from."""
    known = times is not None
    return {
        "network": of.network,
        "step": STEPS[0] if of.is_training else STEPS[1],
        "step_ratio": times.ratio if known else math.nan,
        "ratio_error": times.ratio * times.ratio_error if known else math.nan,
        "noise": times.noise if known else math.nan,
        "noise_error": times.noise * times.noise_error if known else math.nan,
        "default_ms": times.default_s * 1e3 if known else math.nan,
        "disturbed": known and times.disturbed,
        "machine": source["machine"],
        "cpu_model": source["cpu_model"],
        "seed": source["seed"],
        "versions": versions_text(source),
    }


def summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield what the best groupings gain, by step, with 95 % intervals, and how well sums predict steps.

    A best grouping is faster beyond the noise if its 95 % interval lies below the ratios of all copies of TVM's fusion
    in its step.
    """
    ratios = _copies(table)
    for step in STEPS:
        best = table[(table["grouping"] == AGAIN) & (table["step"] == step)].set_index("network")
        if best.empty:
            continue
        mean, low, high = geometric_mean(best["step_ratio"])
        copies = ratios[ratios["step"] == step]
        of_network = copies.groupby("network")["ratio"]
        least, most = _most_of(copies)
        faster = int((best["step_ratio"] + Z * best["ratio_error"] < of_network.min()[best.index]).sum())
        copy, copy_low, copy_high = geometric_mean(of_network.agg(lambda own: np.exp(np.log(own).mean())))
        yield (
            f"Of {step} the best grouping takes {mean:.3f} of the time of TVM's fusion in geometric mean of "
            f"{len(best)} steps (95 % interval {low:.3f} to {high:.3f}), copies of TVM's fusion {copy:.3f} "
            f"({copy_low:.3f} to {copy_high:.3f}), 95 % of the {len(copies)} between {least:.3f} and {most:.3f}; "
            f"beyond the noise it is faster on {faster}"
        )
    unfused = table[table["grouping"] == Kind.UNFUSED]
    mean, low, high = geometric_mean(unfused["step_ratio"])
    yield f"No fusion takes {mean:.3f} of TVM's fusion's time ({low:.3f} to {high:.3f})"
    own = _groupings(table)
    if len(own) > 1:
        square = _explained(own)
        yield (
            f"Of the differences among {len(own)} groupings, sums of kernels explain {square:.2f} (R squared against "
            "equality)"
        )
    searched = table.drop_duplicates(["network", "step"])
    left = searched["left_operators"].sum()
    yield (
        f"{searched['searched_operators'].sum()} operators can share kernels and were searched; {left} others can in "
        "too many ways, and keep the kernels of TVM's fusion"
    )


def _groupings(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of groupings that were right, each once and without copies of TVM's fusion."""
    return table[~table["grouping"].isin([AGAIN, str(Kind.DEFAULT)])].dropna(subset="step_ratio")


def _copies(table: pd.DataFrame) -> pd.DataFrame:
    """Return the ratios of all copies of TVM's fusion: those among the groupings, and the second one of each run.

    Copies are the same code at other places in memory, so these ratios are what a ratio of one differs by for nothing.
    """
    among = table[table["grouping"] == Kind.DEFAULT].assign(ratio=table["step_ratio"])
    second = table.assign(ratio=table["noise"]).drop_duplicates(["network", "step", "ratio"])  # A run has one.
    return pd.concat([among, second])[["network", "step", "ratio"]].dropna()


def _most_of(copies: pd.DataFrame) -> tuple[float, float]:
    """Return between which ratios 95 % of copies are."""
    low, high = np.quantile(copies["ratio"], [0.025, 0.975]) if len(copies) else (math.nan, math.nan)
    return float(low), float(high)


def _explained(own: pd.DataFrame) -> float:
    """Return the share of the variance of measured ratios that predicted ones explain as they are, without a fit."""
    rest = np.square(own["step_ratio"] - own["sum_ratio"]).sum()
    whole = np.square(own["step_ratio"] - own["step_ratio"].mean()).sum()
    return float(1 - rest / whole) if whole else math.nan


def geometric_mean(ratios: pd.Series) -> tuple[float, float, float]:
    """Return a geometric mean over networks and its 95 % bootstrap interval."""
    logs = np.log(ratios.dropna().to_numpy())
    if not len(logs):
        return math.nan, math.nan, math.nan
    draw = np.random.default_rng(0)
    means = draw.choice(logs, (_DRAWS, len(logs))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return math.exp(logs.mean()), math.exp(low), math.exp(high)


def _caption(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    machines = "" if not table["disturbed"].any() else " Others held the cores during some: their times are too long."
    return (
        f"MEASURED on machine {first['machine']}: {first['cpu_model']}. Steps with all tensors in fast memory, in turn "
        f"with TVM's fusion; random weights and inputs, seed {first['seed']}.{machines} {first['versions']}. "
        f"{'. '.join(summary(table))}."
    )


def draw_gap(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw what the best grouping of each step takes, and no fusion, over TVM's fusion."""
    networks = list(dict.fromkeys(table["network"]))
    colors = dict(zip(STEPS, sns.color_palette(style.palette, len(STEPS)), strict=True))
    ratios = _copies(table)
    figure, (axes,) = panels(1, style, widen=2.2)
    for shift, step in zip((-0.18, 0.18), STEPS, strict=True):
        own = table[table["step"] == step]
        for grouping, marker in ((AGAIN, "o"), (str(Kind.UNFUSED), "x")):
            rows = own[own["grouping"] == grouping].set_index("network").reindex(networks)
            places = np.arange(len(networks)) + shift
            axes.errorbar(
                places, rows["step_ratio"], Z * rows["ratio_error"], color=colors[step], fmt=marker, markersize=3.5,
                elinewidth=0.8, label=f"{step}: {'best grouping' if grouping == AGAIN else 'no fusion'}",
            )  # fmt: skip
        copies = ratios[ratios["step"] == step].groupby("network")["ratio"].agg(["min", "max"]).reindex(networks)
        axes.vlines(
            np.arange(len(networks)) + shift, copies["min"], copies["max"], color="0.6", linewidth=3.5, alpha=0.5,
            zorder=0, label="copies of TVM's fusion" if step == STEPS[0] else None,
        )  # fmt: skip
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xticks(range(len(networks)), networks, rotation=60, ha="right")
    axes.set_ylabel("time over TVM's fusion's")
    axes.grid(visible=False, axis="x")
    finish(axes, "", "")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure, (
        "How far TVM's fusion is from the best grouping: of all in which each operator is computed once, those with "
        "the least sums of kernels were measured; the fastest is shown, measured again. Bars: 95 % intervals. "
        "Gray: from the fastest to the slowest copy of TVM's fusion, the same code at other places in memory; the best "
        "grouping is faster beyond the noise where its interval lies below all of them. "
        f"{_caption(table)}"
    )


def draw_sums(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the measured time of each grouping against its sum of kernels, both over TVM's fusion."""
    own, copies = _groupings(table), _copies(table)
    kinds = [str(kind) for kind in Kind if kind in set(own["grouping"])]
    colors = dict(zip(kinds, sns.color_palette(style.palette, len(kinds)), strict=True))
    figure, axes_of = panels(len(STEPS), style)
    for letter, axes, step in zip("ab", axes_of, STEPS, strict=True):
        of_step = own[own["step"] == step]
        for kind in kinds:
            rows = of_step[of_step["grouping"] == kind]
            axes.scatter(
                rows["sum_ratio"], rows["step_ratio"], s=6, color=colors[kind], alpha=0.6, label=kind, linewidth=0
            )
        ends = [min(of_step["sum_ratio"].min(), 1.0), max(of_step["sum_ratio"].max(), 1.0)] if len(of_step) else [1, 1]
        axes.plot(ends, ends, color=GRAY, linewidth=0.8)
        of_copies = _most_of(copies[copies["step"] == step])
        axes.axhspan(*of_copies, color="0.85", linewidth=0, zorder=0, label="copies of TVM's fusion")
        axes.set_xlabel("sum of kernels over that of TVM's fusion")
        axes.set_ylabel("step over that of TVM's fusion")
        finish(axes, letter, f"{step}: R² {_explained(of_step):.2f}" if len(of_step) > 1 else step)
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(kinds) + 1)
    return figure, (
        "Does the sum of a grouping's kernels, each MEASURED alone, predict the step? The line is equality. "
        "Gray: 95 % of the copies of TVM's fusion of all steps, the same code at other places in memory. "
        f"{_caption(table)}"
    )


FUSION_FIGURES: Mapping[str, Callable[[pd.DataFrame, StyleConfig], Drawn]] = {"gap": draw_gap, "sums": draw_sums}
"""The function that makes the picture and its caption from the table of optima."""
