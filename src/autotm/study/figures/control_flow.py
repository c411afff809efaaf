"""Figures of control flow: a model in several systems, with its control flow and without, numbered as in Cocktailer.

Bars and points are medians; whiskers reach from the lower to the upper quartile. What has no times says why beside its
name, and in the table.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from autotm.model.config import StyleConfig
from autotm.model.control_study import (
    ALL_BLOCKS,
    GPU_SYSTEMS,
    RESOLVED,
    SYSTEMS,
    WITH_CONTROL_FLOW,
    ControlStudy,
    SystemTimes,
)
from autotm.model.files import load_with_provenance
from autotm.study.drawing import GRAY, Drawn, finish, panels
from autotm.study.tables import versions_text

FUSED = "tvm-fused"
_TITLES = {
    "lstm": "LSTM", "nasrnn": "NASRNN", "attention": "Attention", "seq2seq": "Seq2seq", "blockdrop": "BlockDrop",
    "skipnet": "SkipNet", "rae": "RAE",
}  # fmt: skip
_LINES = {WITH_CONTROL_FLOW: "-", RESOLVED: "--", ALL_BLOCKS: ":"}
_SHADES = {WITH_CONTROL_FLOW: 1.0, RESOLVED: 0.55, ALL_BLOCKS: 0.3}
_WIDE = 1.25
_SHARE_PAIR = ("tvm-vm", FUSED)
"""The same kernels with control flow on the host and in the function."""


def table_of_studies(studies: Sequence[Path], figure: str) -> pd.DataFrame:
    """Return a row for each system and variant of each study; columns are described in `study/columns.py`.

    Figure 19 alone shows other numbers of threads than that of the study, and GPUs; no other variant.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    rows = []
    for path in studies:
        study, source = load_with_provenance(path, "control_study", ControlStudy)
        threads = study.times[0].threads
        for times in study.times:
            if figure == "fig19":
                is_shown = times.variant == WITH_CONTROL_FLOW
            else:
                is_shown = times.threads == threads and times.system not in GPU_SYSTEMS
            if is_shown:
                rows.append(_row(study, times, source))
    return pd.DataFrame(rows)


def _row(study: ControlStudy, times: SystemTimes, source: Mapping[str, Any]) -> dict[str, Any]:
    low, high = np.quantile(times.times_ms, [0.25, 0.75]) if times.times_ms else (math.nan, math.nan)
    packages = {name: version for name, version in study.versions.items() if version != "not installed"}
    return {
        "model": study.model,
        "batch": times.batch,
        "hidden": times.sizes.get("hidden", math.nan),
        "ratio": times.sizes.get("ratio", math.nan),
        "sizes": _named(times.sizes),
        "threads": times.threads,
        "system": times.system,
        "variant": times.variant,
        "rewrites": _named(times.rewrites),
        "failure": times.failure,
        "build_s": times.build_s,
        "error": times.error,
        "median_ms": times.median_ms,
        "low_ms": low,
        "high_ms": high,
        "rounds": len(times.times_ms),
        "kernel_ms": times.kernel_ms,
        "machine": source["machine"],
        "cpu_model": source["cpu_model"],
        "seed": source["seed"],
        "versions": f"{versions_text(source)}; {_named(packages)}",
    }


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


# What the figures conclude.


def summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each system: how much faster one function is, in geometric mean and at most."""
    table = table[table["variant"] == WITH_CONTROL_FLOW]
    keys = ["model", "batch", "hidden", "ratio", "threads"]
    # A search has several: the best is what the others have to stand against.
    fused = table[table["system"] == FUSED].sort_values("median_ms").drop_duplicates(keys).set_index(keys)["median_ms"]
    for system in [name for name in SYSTEMS if name != FUSED]:
        other = table[table["system"] == system].drop_duplicates(keys).set_index(keys)["median_ms"]
        ratios = (other / fused).dropna()
        if len(ratios):
            mean = math.exp(np.log(ratios).mean())
            yield (
                f"{system} takes {mean:.2f} times as long as {FUSED} in geometric mean of {len(ratios)}, at most "
                f"{ratios.max():.2f} times ({_TITLES.get(ratios.idxmax()[0], '')})"
            )


def _caption(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    threads = " and ".join(str(count) for count in sorted(set(table["threads"])))
    sizes = table.drop_duplicates("model")
    shapes = "; ".join(f"{_TITLES.get(row['model'], row['model'])}: {row['sizes']}" for _, row in sizes.iterrows())
    rounds = table.loc[table["rounds"] > 0, "rounds"]
    return (
        f"MEASURED on machine {first['machine']}: {first['cpu_model']}, {threads} thread"
        f"{'' if threads == '1' else 's'} of each system. Medians of at least {rounds.min() if len(rounds) else 0} "
        "rounds in which the systems take turns; whiskers are quartiles. Results compared with PyTorch's in float64 "
        f"before (1e-5 of the largest). Random weights and inputs, seed {first['seed']}. {shapes}. {first['versions']}."
    )


def _colors(style: StyleConfig) -> dict[str, Any]:
    return dict(zip(SYSTEMS, sns.color_palette(style.palette, len(SYSTEMS)), strict=True))


def _one(table: pd.DataFrame, **values: Any) -> pd.Series | None:
    """Return the first row with these values, if there is one."""
    for column, value in values.items():
        table = table[table[column] == value]
    return None if table.empty else table.iloc[0]


def _bar(axes: Axes, row: pd.Series | None, place: float, width: float, *, across: bool, **look: Any) -> None:
    """Draw one bar with its whisker; or, where there are no times, why."""
    if row is None or math.isnan(row["median_ms"]):
        why = "not measured" if row is None else _short(str(row["failure"]))
        where = (0.0, place) if across else (place, 0.0)
        axes.text(*where, f" N/A: {why}", rotation=0 if across else 90, fontsize=5, color=GRAY,
                  va="center" if across else "bottom", ha="left" if across else "center")  # fmt: skip
        return
    spread = [[row["median_ms"] - row["low_ms"]], [row["high_ms"] - row["median_ms"]]]
    whisker = {"error_kw": {"elinewidth": 0.6, "ecolor": "black"}, "linewidth": 0}
    if across:
        axes.barh(place, row["median_ms"], width, xerr=spread, **whisker, **look)
    else:
        axes.bar(place, row["median_ms"], width, yerr=spread, **whisker, **look)


_LONGEST = 34


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


# Figures.


def draw_overview(table: pd.DataFrame, style: StyleConfig, batch: int) -> Drawn:
    """Draw figure 14: every system with its control flow, a panel for each model."""
    table = table[(table["batch"] == batch) & (table["variant"] == WITH_CONTROL_FLOW)]
    models, colors = list(dict.fromkeys(table["model"])), _colors(style)
    figure, axes_of = panels(len(models), style, columns=min(4, len(models)))
    for letter, axes, model in zip(string.ascii_lowercase, axes_of, models, strict=False):
        own = table[table["model"] == model]
        for place, system in enumerate(SYSTEMS):
            _bar(axes, _one(own, system=system), place, 0.8, across=False, color=colors[system])
        fused = _one(own, system=FUSED)
        others = own[own["system"] != FUSED]["median_ms"].dropna()
        if fused is not None and not math.isnan(fused["median_ms"]):
            axes.axhline(fused["median_ms"], color="#c0392b", linestyle=(0, (4, 2)), linewidth=0.9)
            if len(others):
                text = f"best other / {FUSED}: {others.min() / fused['median_ms']:.2f}"
                axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=6)
        axes.set_xticks(range(len(SYSTEMS)), SYSTEMS, rotation=60, ha="right")
        _cut(axes, own["median_ms"])
        axes.set_ylabel("ms (lower is better)")
        axes.grid(visible=False, axis="x")
        finish(axes, letter, _TITLES.get(model, model))
    return figure, f"Batch {batch}. {_caption(table)} {'. '.join(summary(table))}."


def _cut(axes: Axes, times: pd.Series) -> None:
    """End an axis below a bar that is over 3 times as high as the second, and say how high that is."""
    largest = times.dropna().sort_values(ascending=False)
    if len(largest) > 1 and largest.iloc[0] > 3 * largest.iloc[1]:
        axes.set_ylim(0, 1.5 * largest.iloc[1])
        axes.text(0.02, 0.97, f"cut: {largest.iloc[0]:.3g} ms", transform=axes.transAxes, va="top", fontsize=6)


def draw_overhead(table: pd.DataFrame, style: StyleConfig, models: Sequence[str]) -> Drawn:
    """Draw figures 15, 16 and 18: each system with its control flow and without; time in kernels is hatched."""
    table = table[(table["batch"] == 1) & table["model"].isin(models)]
    colors = _colors(style)
    shown = [model for model in models if model in set(table["model"])]
    figure, axes_of = panels(len(shown), style, columns=min(2, len(shown)), widen=_WIDE)
    for letter, axes, model in zip(string.ascii_lowercase, axes_of, shown, strict=False):
        own = table[table["model"] == model]
        variants = [variant for variant in _SHADES if variant in set(own["variant"])]
        height = 0.8 / len(variants)
        for place, system in enumerate(reversed(SYSTEMS)):
            for number, variant in enumerate(variants):
                row = _one(own, system=system, variant=variant)
                at = place + 0.4 - (number + 0.5) * height
                _bar(axes, row, at, 0.9 * height, across=True, color=colors[system], alpha=_SHADES[variant])
                if row is not None and not math.isnan(row["kernel_ms"]):
                    width = min(row["kernel_ms"], row["median_ms"])
                    axes.barh(at, width, 0.9 * height, fill=False, hatch="////", edgecolor="white", linewidth=0)
        axes.set_yticks(range(len(SYSTEMS)), list(reversed(SYSTEMS)))
        axes.set_xlabel("ms (lower is better)")
        axes.grid(visible=False, axis="y")
        largest = own["median_ms"].dropna().sort_values(ascending=False)
        if len(largest) > 1 and largest.iloc[0] > 3 * largest.iloc[1]:
            axes.set_xlim(0, 1.5 * largest.iloc[1])
        finish(axes, letter if len(shown) > 1 else "", _TITLES[model])
    handles = [Patch(color=GRAY, alpha=_SHADES[variant], label=variant) for variant in _SHADES
               if variant in set(table["variant"])]  # fmt: skip
    handles.append(Patch(facecolor=GRAY, hatch="////", edgecolor="white", label="in kernels"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure, (
        f"{_caption(table)} Time in kernels (hatched) is of a run of its own, where a system tells it: that of tvm-py "
        f"and tvm-vm includes what the telling takes. {' '.join(_overheads(table))}"
    )


def _overheads(table: pd.DataFrame) -> Iterator[str]:
    """Yield what control flow costs, by model and system."""
    for model in dict.fromkeys(table["model"]):
        own = table[table["model"] == model]
        parts = []
        for system in SYSTEMS:
            rows = [_one(own, system=system, variant=variant) for variant in (WITH_CONTROL_FLOW, RESOLVED)]
            times = [math.nan if row is None else row["median_ms"] for row in rows]
            if not any(map(math.isnan, times)):
                parts.append(f"{system} {100 * (times[0] / times[1] - 1):+.0f} %")
        yield f"Control flow adds to {_TITLES.get(model, model)}: {', '.join(parts) or 'not known'}."


def draw_fig2(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 2: what control flow costs in JAX, or in TVM's virtual machine where JAX has no times."""
    table = table[table["batch"] == 1]
    models = [model for model in ("seq2seq", "blockdrop", "rae") if model in set(table["model"])]
    figure, axes_of = panels(len(models), style, widen=0.7)
    texts, colors = [], _colors(style)
    for letter, axes, model in zip(string.ascii_lowercase, axes_of, models, strict=False):
        own = table[table["model"] == model]
        jax = own[own["system"] == "jax"]["median_ms"].notna().any()
        system = "jax" if jax else "tvm-vm"
        rows = [_one(own, system=system, variant=variant) for variant in (RESOLVED, WITH_CONTROL_FLOW)]
        for place, (row, variant) in enumerate(zip(rows, (RESOLVED, WITH_CONTROL_FLOW), strict=True)):
            _bar(axes, row, place, 0.7, across=False, color=colors[system], alpha=_SHADES[variant])
        axes.set_xticks(range(2), ["resolved", "with control\nflow"])
        axes.set_ylabel("ms")
        axes.grid(visible=False, axis="x")
        finish(axes, letter, f"{_TITLES[model]} ({system})")
        times = [math.nan if row is None else row["median_ms"] for row in rows]
        if not any(map(math.isnan, times)):
            texts.append(f"{_TITLES[model]} ({system}) {100 * (1 - times[0] / times[1]):.0f} %")
    return figure, f"{_caption(table)} Share of control flow in the time: {', '.join(texts) or 'not known'}."


def draw_ratios(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 17: time against the percentage of blocks that are computed."""
    table = table[table["ratio"].notna()]
    models, colors = list(dict.fromkeys(table["model"])), _colors(style)
    figure, axes_of = panels(len(models), style, widen=_WIDE)
    for letter, axes, model in zip(string.ascii_lowercase, axes_of, models, strict=False):
        own = table[table["model"] == model]
        for system in dict.fromkeys(own["system"]):
            for variant, line in _LINES.items():
                rows = own[(own["system"] == system) & (own["variant"] == variant)].sort_values("ratio")
                look = {"color": colors[system], "linestyle": line, "label": f"{system}, {variant}"}
                if variant == ALL_BLOCKS:  # It was measured once: no block depends on the ratio.
                    axes.axhline(rows["median_ms"].median(), **look)
                else:
                    axes.plot(rows["ratio"], rows["median_ms"], marker="o", markersize=2.5, **look)
        axes.set_yscale("log")
        axes.set_xlabel("blocks computed, %")
        axes.set_ylabel("ms (log scale)")
        finish(axes, letter, _TITLES.get(model, model))
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure, _caption(table)


def draw_threads(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 19: the systems on another number of threads, over their times on the first; and on a GPU."""
    is_gpu = table["system"].isin(GPU_SYSTEMS)
    table, gpu = table[~is_gpu], table[is_gpu]
    counts, models, colors = sorted(set(table["threads"])), list(dict.fromkeys(table["model"])), _colors(style)
    has_gpu = bool(gpu["median_ms"].notna().any())
    figure, (axes, *others) = panels(1 + has_gpu, style, widen=2.2, columns=1)
    width = 0.8 / len(SYSTEMS)
    for number, system in enumerate(SYSTEMS):
        heights = []
        for model in models:
            rows = [_one(table, model=model, system=system, threads=count) for count in (counts[0], counts[-1])]
            times = [math.nan if row is None else row["median_ms"] for row in rows]
            heights.append(times[0] / times[1] if len(counts) > 1 else math.nan)
        places = [place - 0.4 + (number + 0.5) * width for place in range(len(models))]
        axes.bar(places, heights, 0.9 * width, color=colors[system], label=system, linewidth=0)
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xticks(range(len(models)), [_TITLES.get(model, model) for model in models])
    axes.set_ylabel(f"speed-up by {counts[-1]} threads\nover {counts[0]}")
    axes.grid(visible=False, axis="x")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(SYSTEMS))
    finish(axes, "a" if has_gpu else "", "Threads")
    for axes in others:
        _draw_gpu(axes, table, gpu, models, style)
    return figure, f"{_caption(table)} No bar: no times on one of the two. {_of_gpu(gpu)}"


def _draw_gpu(axes: Axes, table: pd.DataFrame, gpu: pd.DataFrame, models: Sequence[str], style: StyleConfig) -> None:
    """Draw how much faster one function is on a GPU than on the fewest threads."""
    fused = table[table["system"] == FUSED].sort_values("threads").drop_duplicates("model").set_index("model")
    width, colors = 0.8 / len(GPU_SYSTEMS), sns.color_palette(style.palette, len(GPU_SYSTEMS))
    for number, system in enumerate(GPU_SYSTEMS):
        rows = [_one(gpu, model=model, system=system) for model in models]
        pairs = zip(models, rows, strict=True)
        heights = [math.nan if row is None else fused["median_ms"][model] / row["median_ms"] for model, row in pairs]
        places = [place - 0.4 + (number + 0.5) * width for place in range(len(models))]
        axes.bar(places, heights, 0.9 * width, color=colors[number], label=system, linewidth=0)
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xticks(range(len(models)), [_TITLES.get(model, model) for model in models])
    axes.set_ylabel(f"speed-up over {FUSED}")
    axes.legend()
    finish(axes, "b", "GPU")


def _of_gpu(gpu: pd.DataFrame) -> str:
    """Return why there are no times on a GPU, where there are none."""
    reasons = gpu[gpu["median_ms"].isna()].groupby("failure", sort=False)["system"].unique()
    return " ".join(f"{', '.join(systems)}: {failure}." for failure, systems in reasons.items())


def draw_breakdown(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 20: from pieces that Python calls to one function, and what each set of rewrites gains."""
    models = list(dict.fromkeys(table["model"]))
    figure, axes_of = panels(len(models), style, columns=min(4, len(models)))
    colors, texts = _colors(style), []
    for letter, axes, model in zip(string.ascii_lowercase, axes_of, models, strict=False):
        own = table[table["model"] == model]
        fused = own[own["system"] == FUSED].reset_index(drop=True)
        shown = [(system, _one(own, system=system)) for system in ("tvm-py", "tvm-vm")]
        shown.append(("one function", None if fused.empty else fused.iloc[0]))
        timed = fused[fused["median_ms"].notna()]
        if not timed.empty:
            best = timed.loc[timed["median_ms"].idxmin()]
            shown.append(("+ best rewrites", best))
            texts.append(f"{_TITLES.get(model, model)}: {best['rewrites']}")
        for place, (label, row) in enumerate(shown):
            _bar(axes, row, place, 0.8, across=False, color=colors.get(label, colors[FUSED]))
        axes.set_xticks(range(len(shown)), [label for label, _ in shown], rotation=35, ha="right")
        axes.set_ylabel("ms (lower is better)")
        axes.grid(visible=False, axis="x")
        finish(axes, letter, _TITLES.get(model, model))
    return figure, f"{_caption(table)} Best of all sets of rewrites: {'; '.join(texts)}."


def draw_hidden(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the share of control flow, and speed-up of one function, against the hidden size."""
    table = table[(table["variant"] == WITH_CONTROL_FLOW) & (table["batch"] == 1)]
    models, colors = list(dict.fromkeys(table["model"])), _colors(style)
    figure, axes_of = panels(2 * len(models), style, columns=2, widen=_WIDE)
    texts = []
    for number, model in enumerate(models):
        own = table[table["model"] == model]
        times = own.pivot_table(index="hidden", columns="system", values="median_ms", sort=True)
        share, gain = axes_of[2 * number : 2 * number + 2]
        host, fused = (times.get(name) for name in _SHARE_PAIR)
        if host is not None and fused is not None:
            shares = 100 * (1 - fused / host)
            share.plot(shares.index, shares, "o-", color=colors[FUSED])
            texts.append(_crossover(model, times))
        share.set_ylabel(f"share of control flow in\n{_SHARE_PAIR[0]}, %")
        for system in times.columns:
            if system != FUSED and fused is not None:
                ratios = times[system] / fused
                gain.plot(ratios.index, ratios, "o-", color=colors[system], label=system)
        gain.axhline(1.0, color=GRAY, linewidth=0.8)
        gain.set_ylabel(f"time over that of {FUSED}")
        gain.set_yscale("log")
        for axes, letter in (
            (share, string.ascii_lowercase[2 * number]),
            (gain, string.ascii_lowercase[2 * number + 1]),
        ):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("hidden size")
            finish(axes, letter, _TITLES.get(model, model))
    figure.legend(*axes_of[1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, f"{_caption(table)} {' '.join(texts)}"


def _crossover(model: str, times: pd.DataFrame) -> str:
    """Say up to which hidden size one function is faster than every other system."""
    others = times.drop(columns=FUSED).min(axis=1)
    is_faster = times[FUSED] < others
    name = _TITLES.get(model, model)
    if is_faster.all():
        return f"{name}: {FUSED} is the fastest at every size."
    if not is_faster.iloc[0]:
        return f"{name}: {FUSED} is not the fastest at hidden {times.index[0]:.0f}."
    last = times.index[int(np.argmin(is_faster)) - 1]
    return f"{name}: {FUSED} is the fastest up to hidden {last:.0f}."


LOOPS, BRANCHES, RECURSION = ("lstm", "nasrnn", "attention", "seq2seq"), ("blockdrop", "skipnet"), ("rae",)
CONTROL_FIGURES: Mapping[str, Callable[[pd.DataFrame, StyleConfig], Drawn]] = {
    "fig2": draw_fig2,
    "fig14_batch1": partial(draw_overview, batch=1),
    "fig14_batch64": partial(draw_overview, batch=64),
    "fig15": partial(draw_overhead, models=LOOPS),
    "fig16": partial(draw_overhead, models=BRANCHES),
    "fig17": draw_ratios,
    "fig18": partial(draw_overhead, models=RECURSION),
    "fig19": draw_threads,
    "fig20": draw_breakdown,
    "hidden_size": draw_hidden,
}
"""The function that makes the picture and its caption from the table."""
