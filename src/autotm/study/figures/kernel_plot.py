"""The kernel plot: one convolution's time in all eight placements of what it reads and writes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
from matplotlib.patches import Patch

from autotm.model.files import BadInputError, load
from autotm.model.machine import slow_memory_text
from autotm.model.measurement import read_profile
from autotm.model.step import Counts, Graph, Tier, configuration, counting
from autotm.model.study import StyleConfig
from autotm.study.drawing import GRAY, Drawn, finish, machine_text, optimizer_colors, panels
from autotm.study.tables import COLUMN, marked, versions_text

OPERANDS = ("data", "weight", "output")
_TIERS = {Tier.DRAM: "fast", Tier.PMEM: "slow"}


def table_of_convolution(graph: Path, profile: Path) -> pd.DataFrame:
    """A row for each placement, in binary order: `data` turns slow last, `output` first.

    Columns: `fast` or `slow` for each operand, median and quartiles in nanoseconds, `relative` to the all-fast median,
    whether the time is `measured` or holds an `emulated` wait, whether it was `disturbed`, shapes, and where it was
    measured.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: the profile lacks a placement.
    """
    step, timed = load(graph, "graph", Graph), read_profile(profile)
    counted = counting(step, Counts.ALL)
    (kernel,) = counted.kernels
    source = timed.provenance
    shared = {
        "batch": step.batch,
        "scale": step.scale,
        **{f"{item.tensor}_shape": "x".join(map(str, item.shape)) for item in (*kernel.inputs, *kernel.outputs)},
        **{key: source[key] for key in ("machine", "cpu_model", "threads", "tier_reality", "seed")},
        "slow_memory": slow_memory_text(source),
        "versions": versions_text(source),
    }
    rows = []
    for tiers in itertools.product(_TIERS, repeat=len(OPERANDS)):
        slow = {name for name, tier in zip(OPERANDS, tiers, strict=True) if tier is Tier.PMEM}
        timing = timed.timing(kernel, configuration(counted, kernel, slow))
        if timing is None:
            raise BadInputError(f"{profile}: no time with {', '.join(sorted(slow)) or 'nothing'} in slow memory")
        rows.append(
            {name: _TIERS[tier] for name, tier in zip(OPERANDS, tiers, strict=True)}
            | {
                "median_ns": timing.median_ns,
                "lower_quartile_ns": timing.lower_quartile_ns,
                "upper_quartile_ns": timing.upper_quartile_ns,
                "repeats": timing.repeats,
                COLUMN: timing.disturbed,
                "time": "measured"
                if not slow or shared["tier_reality"] in {"real", "stand-in"}
                else shared["tier_reality"],
            }
            | shared
        )
    table = pd.DataFrame(rows)
    return table.assign(relative=table["median_ns"] / table["median_ns"].iloc[0])


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A bar for each placement."""
    first, base_ns = table.iloc[0], float(table["median_ns"].iloc[0])
    measured, other = optimizer_colors(style)["all-fast"], optimizer_colors(style)["synchronous"]
    colors = [measured if kind == "measured" else other for kind in table["time"]]
    figure, (axes,) = panels(1, style, widen=1.4)
    spread = [
        (table["median_ns"] - table["lower_quartile_ns"]).clip(lower=0) / base_ns,
        (table["upper_quartile_ns"] - table["median_ns"]).clip(lower=0) / base_ns,
    ]
    axes.bar(
        range(len(table)),
        table["relative"],
        0.7,
        color=colors,
        linewidth=0,
        yerr=spread,
        error_kw={"elinewidth": 0.8, "ecolor": GRAY},
    )
    axes.set_xticks(range(len(table)), ["\n".join(row[name] for name in OPERANDS) for _, row in table.iterrows()])
    axes.annotate(
        "\n".join(OPERANDS), (0, 0), (-6, -5.5), "axes fraction", "offset points", ha="right", va="top",
        fontsize=style.font_size_pt - 1,
    )  # fmt: skip
    axes.grid(visible=False, axis="x")
    axes.axhline(1.0, color=GRAY, linewidth=0.6)
    axes.set_ylim(0, 1.1 * float((table["upper_quartile_ns"] / base_ns).max()))
    axes.set_ylabel("time, all fast = 1")
    timed = table[table["repeats"] > 0]
    waits = "" if len(timed) == len(table) else " slow operands add an emulated wait of known length;"
    held = " others held the cores, so times are too long;" if marked(table).any() else ""
    kinds = dict.fromkeys(table["time"])
    handles = [Patch(color=measured if kind == "measured" else other, label=kind) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    finish(axes, "", "3 x 3 convolution by where its operands are")
    return figure, (
        f"data {first['data_shape']}, weight {first['weight_shape']}, output {first['output_shape']} (batch first, "
        f"channels last), float32, padding 1, scale {first['scale']}; {machine_text(first)}. Medians of at least "
        f"{timed['repeats'].min()} runs, all fast {base_ns / 1e6:.3g} ms; lines: quartiles;{waits}{held} seed "
        f"{first['seed']}. {first['versions']}."
    )
