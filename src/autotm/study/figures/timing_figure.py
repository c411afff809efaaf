"""The picture of the timing study: agreement, spread and cost of each way, drawn from its table alone."""

from __future__ import annotations

import string
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autotm.model.measurement import Way
from autotm.model.study import StyleConfig
from autotm.study.drawing import GRAY, finish, fix_legends, machine_text, panels, save_figure, styled, write_caption
from autotm.study.tables import read_table, write_table
from autotm.study.timing import MEASURED, MIN_US, RECORDED, summary, timing_table

_WAYS = tuple(str(way) for way in Way)
_COMPARED = tuple(way for way in _WAYS if way != Way.SINGLE)
_SHOWN_QUANTILE = 0.99
"""Differences beyond it stand at the edge: one kernel that was disturbed would flatten the rest."""


def make_timing_figure(
    study_file: Path, recorded: Path | None, csv: Path, summary_csv: Path, pdf: Path, png: Path, style: StyleConfig
) -> pd.DataFrame:
    """Measurements -> both tables -> .pdf and .png; returns the summary.

    Raises:
        DamagedFileError: the measurements cannot be read.
        BadInputError: the table of recorded kernels cannot.
    """
    write_table(timing_table(study_file, recorded), csv)
    draw(csv, pdf, png, style)
    found = summary(read_table(csv))
    write_table(found, summary_csv)
    return found


def draw(csv: Path, pdf: Path, png: Path, style: StyleConfig) -> None:
    """Draw the figure from its table alone: no measurements, no machine."""
    table = read_table(csv)
    with styled(style):
        figure = _drawn(table, style)
        fix_legends(figure)
        text = _caption(table)
        if style.caption:
            write_caption(figure, text, style)
        save_figure(figure, pdf, png, text, style)


def _drawn(table: pd.DataFrame, style: StyleConfig) -> Figure:
    measured, recorded = (table[table["source"] == source] for source in (MEASURED, RECORDED))
    figure, axes_of = panels(3 if recorded.empty else 4, style)
    colors = dict(zip(_WAYS, sns.color_palette(style.palette, len(_WAYS)), strict=True))
    compared = measured[measured["way"].isin(_COMPARED)]
    _differences(axes_of[0], compared, "one configuration at a time, us")
    for way in _COMPARED:
        of_way = compared[compared["way"] == way]
        axes_of[0].scatter(
            of_way["single_us"], _clipped(of_way, compared), s=7, color=colors[way], label=way, alpha=0.7, linewidth=0
        )
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_COMPARED))
    _spreads(axes_of[1], measured, colors)
    _costs(axes_of[2], measured, colors)
    titles = ["difference from single", "spread of one configuration", "cost of all configurations"]
    if not recorded.empty:
        _differences(axes_of[3], recorded, "as recorded, us")
        axes_of[3].scatter(
            recorded["single_us"],
            _clipped(recorded, recorded),
            s=3,
            color=GRAY,
            alpha=0.3,
            linewidth=0,
            rasterized=True,
        )
        titles.append("sums of recorded kernels")
    for letter, axes, title in zip(string.ascii_lowercase, axes_of, titles, strict=False):
        finish(axes, letter, title)
    return figure


def _differences(axes: Axes, table: pd.DataFrame, what: str) -> None:
    edge = 1.05 * _edge(table)
    axes.set_xscale("log")
    axes.set_xlabel(f"kernel time, {what}")
    axes.set_ylabel("difference, %")
    axes.set_ylim(-edge, edge)
    axes.axhline(0.0, color=GRAY, linewidth=0.6)


def _edge(table: pd.DataFrame) -> float:
    return max(1.0, float(table["difference_percent"].abs().quantile(_SHOWN_QUANTILE)))


def _clipped(of_way: pd.DataFrame, every: pd.DataFrame) -> pd.Series:
    edge = _edge(every)
    return of_way["difference_percent"].clip(-edge, edge)


def _spreads(axes: Axes, measured: pd.DataFrame, colors: dict[str, tuple[float, float, float]]) -> None:
    """A box for each way: quartiles over configurations of the interquartile range of its runs over their median."""
    timed = measured.dropna(subset=["lower_quartile_us", "upper_quartile_us"])
    spread = 100 * (timed["upper_quartile_us"] - timed["lower_quartile_us"]) / timed["time_us"]
    ways = [way for way in _WAYS if (timed["way"] == way).any()]
    drawn = axes.boxplot(
        [spread[timed["way"] == way] for way in ways],
        tick_labels=ways,
        showfliers=False,
        patch_artist=True,
        medianprops={"color": GRAY},
    )
    for box, way in zip(drawn["boxes"], ways, strict=True):
        box.set_facecolor(colors[way])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("interquartile range, %")
    axes.tick_params(axis="x", labelrotation=20)


def _costs(axes: Axes, measured: pd.DataFrame, colors: dict[str, tuple[float, float, float]]) -> None:
    seconds = measured.drop_duplicates("way").set_index("way")["way_seconds"]
    ways = [way for way in _WAYS if way in seconds.index and way != Way.AGAIN]
    bars = axes.bar(ways, [float(seconds[way]) for way in ways], color=[colors[way] for way in ways], linewidth=0)
    axes.bar_label(bars, [f"{float(seconds[Way.SINGLE]) / float(seconds[way]):.3g}x" for way in ways], fontsize="small")
    axes.margins(y=0.1)  # room for the label of the tallest bar
    axes.set_ylabel("wall time, s")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", labelrotation=20)


def _caption(table: pd.DataFrame) -> str:
    first, found = table.iloc[0], summary(table).set_index("way")
    known = ", so that configurations add up but for noise" if first["tier_reality"] == "emulated" else ""
    differences = "; ".join(
        f"{way} {row['median_difference_percent']:.2g} % (90th percentile {row['p90_difference_percent']:.2g} %)"
        for way, row in found.iterrows()
        if way != Way.SINGLE
    )
    recorded = (
        f" Sums of recorded kernels (Optane; those of at least {MIN_US} us all fast) are compared with recorded times."
        if RECORDED in set(table["source"])
        else ""
    )
    quickest = found.index[found["fastest_inside_noise"]]
    verdict = f" The quickest inside the noise: {quickest[0]}." if len(quickest) else ""
    return (
        f"Kernels of {first['network']} (batch {first['batch']}), scale {first['scale']}, each timed in every "
        f"configuration; {machine_text(first)}{known}. "
        f"Steps were run {first['step_repeats']} times for each set of configurations. Median size of the difference "
        f"from one configuration at a time: {differences}.{recorded}{verdict} Points beyond the 99th percentile stand "
        f"at the edge. Seed {first['seed']}. {first['versions']}."
    )
