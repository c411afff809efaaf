"""Figure 12 of AutoTM: training beyond a GPU's memory, speed-up over memory that the driver manages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autotm.model.measurement import KERNEL_BY_KERNEL
from autotm.model.plan import GPU_RIVALS
from autotm.model.study import StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    disturbed_text,
    finish,
    near_text,
    optimizer_colors,
    panels,
    rival_colors,
    series_name,
    title,
)
from autotm.study.figures.comparisons import bars
from autotm.study.figures.gpu.framework import framework_text, has_bar
from autotm.study.figures.gpu.table import ORACLE
from autotm.study.setup import GPU_BASELINE
from autotm.study.tables import COLUMN, marked

FACE = "MODELLED, not measured: no GPU ran any of this"
"""What the figure says in itself, wherever it is copied to."""
_LEGEND_COLUMNS, _LEGEND_ROW = 2, 0.25
"""The legend is above the bars; a row of it takes that share of the highest one."""
_CROWDED = 5
"""More places than this have their names turned."""


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A panel for plans and the oracle, and one for the best of them beside rivals."""
    told, table = table, table.assign(**{COLUMN: marked(table)})[has_bar(table)]
    figure, axes = panels(2, style, widen=1.35)
    say_so(figure, table, style)
    plans = [name for name in dict.fromkeys(table["optimizer"]) if name not in GPU_RIVALS]
    rivals = [name for name in dict.fromkeys(table["optimizer"]) if name in GPU_RIVALS and name != GPU_BASELINE]
    oracle = table.drop_duplicates(["network", "batch"]).copy()
    oracle["speedup"] *= oracle["step_s"] / oracle["oracle_s"]
    oracle["optimizer"], oracle["fits"], oracle[COLUMN] = ORACLE, True, False
    shown = pd.concat([table, oracle])
    colors = {**optimizer_colors(style), **rival_colors(style), ORACLE: GRAY}
    _panel(axes[0], shown, [*plans, ORACLE], colors)
    finish(axes[0], "a", "plans and oracle")
    _panel(axes[1], shown, [*plans[-1:], *rivals], colors)
    finish(axes[1], "b", "rivals of today")
    return figure, _caption(table, framework_text(told))


def _panel(axes: Axes, table: pd.DataFrame, names: list[str], colors: Mapping[str, Any]) -> None:
    places = list(dict.fromkeys(zip(table["network"], table["batch"], strict=True)))
    by_place = table.set_index(["optimizer", "network", "batch"])
    series, hollow = [], []
    for number, name in enumerate(names):
        heights, outlined = [], []
        for place, (network, batch) in enumerate(places):
            if (name, network, batch) not in by_place.index:
                heights.append(math.nan)
                outlined.append(False)
                continue
            row = by_place.loc[name, network, batch]
            outlined.append(bool(row[COLUMN]))
            heights.append(float(row["speedup"]) if row["fits"] else math.nan)
            if not row["fits"]:
                shift = (number - (len(names) - 1) / 2) * 0.8 / len(names)
                look = {"color": colors[name], "ha": "center", "va": "bottom", "fontsize": "large"}
                axes.text(place + shift, 0.0, "\N{MULTIPLICATION SIGN}", look)
        series.append((series_name(name), heights, colors[name]))
        hollow.append(outlined)
    bars(axes, [f"{title(str(network))} ({batch})" for network, batch in places], series, hollow)
    if len(places) > _CROWDED:
        axes.tick_params(axis="x", rotation=40)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    axes.set_xlim(-0.5, len(places) - 0.5)  # A cross at an edge has no bar that would make room for it.
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    fitting = table[table["fits"].astype(bool) & table["optimizer"].isin(names)]
    headroom = 1 + _LEGEND_ROW * math.ceil(len(names) / _LEGEND_COLUMNS)
    axes.set_ylim(0, headroom * max(1.0, float(fitting["speedup"].max())))
    axes.set_ylabel(f"speed-up{', modelled' if is_modelled(table) else ''}\n(managed memory = 1)")
    axes.legend(loc="upper left", ncols=_LEGEND_COLUMNS)


def _caption(table: pd.DataFrame, of_frameworks: str) -> str:
    first, plans = table.iloc[0], table[table["gap"].notna()]
    proven = f"Plans are {near_text(plans['gap'].max())} on the predicted step. " if len(plans) else ""
    how = "Steps are simulated on three engines (compute, in, out). " if is_modelled(table) else _measured_text(table)
    return (
        f"{gpu_text(table)} {_limits(table)} {proven}"
        "Oracle: the fastest implementation of every kernel and no copies. A cross: the step does not fit. "
        f"{how}{of_frameworks}Machine {first['machine']}; seed {first['seed']}. {first['versions']}."
    )


def is_modelled(table: pd.DataFrame) -> bool:
    """Whether the steps of a table were computed, and not run."""
    return str(table["tier_reality"].iloc[0]) == "modelled"


def say_so(figure: Figure, table: pd.DataFrame, style: StyleConfig) -> None:
    """Where nothing ran, write so into the figure."""
    if is_modelled(table):
        figure.suptitle(FACE, color="tab:red", fontsize=style.font_size_pt + 1, fontweight="bold")


def gpu_text(table: pd.DataFrame) -> str:
    """For captions: which GPU, and where its times come from."""
    first = table.iloc[0]
    if not is_modelled(table):
        return (
            f"Measured on {str(first['tier_reality']).upper()} device memory of {first['gpu']} (driver "
            f"{first['gpu_driver']}; host: {first['cpu_model']})."
        )
    return (
        f"MODELLED: {first['gpu']}; kernel times by a roofline of published facts, copies at published rates, managed "
        "memory by a model of page faults. Nothing ran on a GPU."
    )


def _measured_text(table: pd.DataFrame) -> str:
    """How steps were timed, and what was made sure."""
    ran = table[table["fits"].astype(bool)]
    by_kernel = int((ran["verified_against"] == KERNEL_BY_KERNEL).sum())
    there = f", which {by_kernel} of {len(ran)} steps met kernel by kernel, for want of memory" if by_kernel else ""
    return (
        f"Steps are medians of at least {ran['samples'].min()} timed ones; {ran['verified_steps'].min():.0f} of each "
        f"program were compared bit for bit with the plain step{there}. {disturbed_text(table)}Managed memory: "
        f"cudaMallocManaged, device memory beyond the limit held by another allocation. {_repeated_text(ran)}"
    )


def _repeated_text(ran: pd.DataFrame) -> str:
    """What recomputation cost of the kernels' time, where it ran."""
    again = ran[ran["repeated_s"] > 0]
    if again.empty:
        return ""
    shares = 100 * again["repeated_s"] / (again["kernels_s"] + again["repeated_s"])
    least, most = f"{shares.min():.2g}", f"{shares.max():.2g}"
    return f"Recomputation: {least if least == most else f'{least} to {most}'} % of the kernels' time was repeated. "


def _limits(table: pd.DataFrame) -> str:
    limits, scales = (", ".join(map(str, dict.fromkeys(table[key]))) for key in ("limit", "scale"))
    return f"Device memory for what is placed: {limits}; scale {scales}."
