"""The figure of searches for the best grouping of operators: what each algorithm found, after how many trials."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns

from autotm.model.config import StyleConfig
from autotm.model.files import load_with_provenance
from autotm.model.fusion import FusionOptimum, FusionSearch
from autotm.study.drawing import GRAY, Drawn, finish, panels
from autotm.study.figures.fusion import Z, measured_columns

EXHAUSTIVE = "exhaustive"
"""The best of all groupings in which each operator is computed once, as rule `fusion_exhaustive` found it."""
_MOST_OF = 0.95
"""Share of a search's gain that counts as found."""


def table_of_searches(searches: Sequence[Path], optima: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each step of each search, and one for the best grouping; columns are in `study/columns.py`.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    rows = []
    for path in searches:
        found, source = load_with_provenance(path, "fusion_search", FusionSearch)
        best = 1.0  # All begin with TVM's fusion.
        for step in found.steps:
            best = min(best, step.trial.energy)
            columns = {
                "algorithm": found.algorithm,
                "search_seed": found.search_seed,
                "trial": step.step + 1,
                "kernels": step.trial.kernels,
                "best_ratio": best,
                "temperature": step.temperature,
                "accepted": step.is_accepted,
                "failure": step.trial.failure,
            }
            rows.append(measured_columns(found, step.trial.times, source) | columns)
    for path in optima:
        exact, source = load_with_provenance(path, "fusion_optimum", FusionOptimum)
        if exact.best_times is not None:
            kernels = exact.groupings[exact.best].kernels
            columns = {
                "algorithm": EXHAUSTIVE,
                "search_seed": 0,
                "trial": 0,
                "kernels": kernels,
                "best_ratio": exact.best_times.ratio,
                "failure": "",
            }
            rows.append(measured_columns(exact, exact.best_times, source) | columns)
    return pd.DataFrame(rows)


def search_summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield for each step and algorithm what it found, and after how many trials most of that."""
    for (network, step), own in table.groupby(["network", "step"], sort=False):
        exact = own[own["algorithm"] == EXHAUSTIVE]
        searched = own[own["algorithm"] != EXHAUSTIVE]
        scatter = float(searched["noise"].std())
        parts = []
        for algorithm, runs in searched.groupby("algorithm", sort=False):
            curves = [run.sort_values("trial")["best_ratio"].to_numpy() for _, run in runs.groupby("search_seed")]
            ends = [curve[-1] for curve in curves]
            needed = [int(np.argmax(1 - curve >= _MOST_OF * (1 - curve[-1]))) + 1 for curve in curves]
            found = ", ".join(f"{end:.3f}" for end in ends)
            if min(ends) > 1 - Z * scatter:
                parts.append(f"{algorithm} {found}, no gain beyond the noise")
            else:
                parts.append(f"{algorithm} {found}, most of it after {', '.join(map(str, needed))} trials")
        best = f"; the best of all groupings {exact['best_ratio'].iloc[0]:.3f}" if len(exact) else ""
        yield (
            f"{network}, {step}: of TVM's fusion's time, {'; '.join(parts)}{best}; a second copy of TVM's fusion "
            f"scatters by {scatter:.3f}"
        )


def draw_search(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the best time that each search has found against its trials, a panel for each step."""
    steps = list(dict.fromkeys(zip(table["network"], table["step"], strict=True)))
    searched = table[table["algorithm"] != EXHAUSTIVE]
    algorithms = list(dict.fromkeys(searched["algorithm"]))
    colors = dict(zip(algorithms, sns.color_palette(style.palette, len(algorithms)), strict=True))
    figure, axes_of = panels(len(steps), style, columns=min(3, len(steps)))
    for letter, axes, (network, step) in zip(string.ascii_lowercase, axes_of, steps, strict=False):
        own = table[(table["network"] == network) & (table["step"] == step)]
        ordered = own[own["algorithm"] != EXHAUSTIVE].sort_values("trial")
        for (algorithm, seed), run in ordered.groupby(["algorithm", "search_seed"]):
            is_first = seed == searched["search_seed"].min()
            axes.step(
                run["trial"], run["best_ratio"], where="post", color=colors[algorithm], linewidth=0.9,
                label=algorithm if is_first else None,
            )  # fmt: skip
        for _, exact in own[own["algorithm"] == EXHAUSTIVE].iterrows():
            axes.axhline(
                exact["best_ratio"], color="black", linestyle=(0, (4, 2)), linewidth=0.9, label="best grouping"
            )
        noise = own[own["algorithm"] != EXHAUSTIVE]["noise"]
        axes.axhspan(1 - Z * noise.std(), 1 + Z * noise.std(), color="0.85", linewidth=0, zorder=0, label="noise")
        axes.axhline(1.0, color=GRAY, linewidth=0.8)
        axes.set_xlabel("trials")
        axes.set_ylabel("best time over TVM's fusion's")
        finish(axes, letter if len(steps) > 1 else "", f"{network}, {step}")
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    first = table.iloc[0]
    return figure, (
        "What searches for a better grouping than TVM's fusion have found, a line for each seed. They may recompute "
        "operators, the best grouping may not. The least of many noisy times is less than the time itself. MEASURED on "
        f"machine {first['machine']}: {first['cpu_model']}; each trial in turn with TVM's fusion and a second copy of "
        f"it, whose times scatter as the band says (95 %). Seed {first['seed']}. {first['versions']}. "
        f"{'. '.join(search_summary(table))}."
    )
