"""Figures of kernel times: a convolution in all placements; quick ways of timing against the slow one."""

from __future__ import annotations

import itertools
import string
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, load_with_provenance
from autotm.model.graph import Graph, configuration
from autotm.model.kernel_studies import TimingMethod, TimingStudy
from autotm.model.limit import Counts, counting
from autotm.model.profile import read_profile
from autotm.model.provenance import slow_memory_text
from autotm.study.drawing import GRAY, Drawn, draw_to_files, finish, machine_text, optimizer_colors, panels
from autotm.study.tables import DISTURBED, fields_of, is_disturbed, read_table, versions_text, write_table

OPERANDS = ("data", "weight", "output")


def table_of_convolution(graph: Path, profile: Path) -> pd.DataFrame:
    """Return a row for each placement, in binary order: `data` turns slow last, `output` first (`study/columns.py`).

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: the profile lacks a placement.
    """
    step, timed = load(graph, "graph", Graph), read_profile(profile)
    counted = counting(step, Counts.ALL)
    (kernel,) = counted.kernels
    source = timed.provenance
    shared = {
        **fields_of(step, "batch", "scale"),
        **{f"{item.tensor}_shape": "x".join(map(str, item.shape)) for item in (*kernel.inputs, *kernel.outputs)},
        **{key: source[key] for key in ("machine", "cpu_model", "threads", "tier_reality", "seed")},
        "slow_memory": slow_memory_text(source),
        "versions": versions_text(source),
    }
    rows = []
    for tiers in itertools.product(("fast", "slow"), repeat=len(OPERANDS)):
        placed = dict(zip(OPERANDS, tiers, strict=True))
        slow = {name for name, tier in placed.items() if tier == "slow"}
        timing = timed.timing(kernel, configuration(counted, kernel, slow))
        if timing is None:
            raise BadInputError(f"{profile}: no time with {', '.join(sorted(slow)) or 'nothing'} in slow memory")
        reality = shared["tier_reality"]
        rows.append(
            placed
            | fields_of(timing, "median_ns", "lower_quartile_ns", "upper_quartile_ns", "repeats", DISTURBED)
            | {"time": "measured" if not slow or reality in {"real", "stand-in"} else reality}
            | shared
        )
    table = pd.DataFrame(rows)
    return table.assign(relative=table["median_ns"] / table["median_ns"].iloc[0])


def draw_kernel_plot(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw a bar for each placement."""
    first, base_ns = table.iloc[0], float(table["median_ns"].iloc[0])
    measured, other = optimizer_colors(style)["all-fast"], optimizer_colors(style)["synchronous"]
    color_of = {kind: measured if kind == "measured" else other for kind in dict.fromkeys(table["time"])}
    figure, (axes,) = panels(1, style, widen=1.4)
    spread = [
        (table["median_ns"] - table["lower_quartile_ns"]).clip(lower=0) / base_ns,
        (table["upper_quartile_ns"] - table["median_ns"]).clip(lower=0) / base_ns,
    ]
    look = {"color": [color_of[kind] for kind in table["time"]], "linewidth": 0}
    axes.bar(
        range(len(table)), table["relative"], 0.7, yerr=spread, error_kw={"elinewidth": 0.8, "ecolor": GRAY}, **look
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
    held = " others held the cores, so times are too long;" if is_disturbed(table).any() else ""
    handles = [Patch(color=color, label=kind) for kind, color in color_of.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    finish(axes, "", "3 x 3 convolution by where its operands are")
    return figure, (
        f"data {first['data_shape']}, weight {first['weight_shape']}, output {first['output_shape']} (batch first, "
        f"channels last), float32, padding 1, scale {first['scale']}; {machine_text(first)}. Medians of at least "
        f"{timed['repeats'].min()} runs, all fast {base_ns / 1e6:.3g} ms; lines: quartiles;{waits}{held} seed "
        f"{first['seed']}. {first['versions']}."
    )


# Sums judged by recorded kernels: what k + 1 configurations predict for the others, against what was recorded.
#
# Tables are those of `docs/emulation.md`: one row for each kernel and configuration, with whole microseconds.

MIN_US = 100
"""Kernels that took less all fast are left out: times are whole microseconds, and small ones mostly noise."""
_COLUMNS = ("kernel_id", "op", "input_config", "output_config", "time_us")


def sums_of_recorded(path: Path) -> pd.DataFrame:
    """Return one row for each recorded configuration with at least two slow operands.

    Columns `kernel`, `op`, `configuration`, `slow_operands`, `single_us` (as recorded) and `time_us`: the recorded
    all-fast time plus what each slow operand alone added, be it less than nothing, as profiles add up.
    Configurations of kernels that lack a row which the sum needs are left out.

    Raises:
        BadInputError: no such file, or not such a table.
    """
    table = _read(path)
    table["configuration"] = table["input_config"].fillna("") + table["output_config"].fillna("")
    table["slow_operands"] = table["configuration"].str.count("P")
    rows = []
    for kernel, rows_of_kernel in table.groupby("kernel_id", sort=True):
        times = dict(zip(rows_of_kernel["configuration"], rows_of_kernel["time_us"].astype(float), strict=True))
        base_us = times.get("D" * len(rows_of_kernel["configuration"].iloc[0]))
        if base_us is None or base_us < MIN_US:
            continue
        extras = {config.index("P"): time_us - base_us for config, time_us in times.items() if config.count("P") == 1}
        for one in rows_of_kernel.itertuples(index=False):
            slots = [slot for slot, letter in enumerate(one.configuration) if letter == "P"]
            if len(slots) > 1 and one.time_us > 0 and extras.keys() >= set(slots):
                sum_us = base_us + sum(extras[slot] for slot in slots)
                rows.append((str(kernel), one.op, one.configuration, one.slow_operands, float(one.time_us), sum_us))
    names = ["kernel", "op", "configuration", "slow_operands", "single_us", "time_us"]
    return pd.DataFrame(rows, columns=names)


def _read(path: Path) -> pd.DataFrame:
    """Read a table of recorded kernels, whose columns are those of docs/emulation.md."""
    try:
        table = pd.read_csv(path, keep_default_na=False, compression="infer")
    except FileNotFoundError:
        raise BadInputError(f"timing_study.recorded: {path}: no such table") from None
    except (ValueError, OSError, EOFError) as error:
        raise BadInputError(f"timing_study.recorded: {path}: not a table: {' '.join(str(error).split())}") from None
    if missing := [name for name in _COLUMNS if name not in table]:
        raise BadInputError(
            f"timing_study.recorded: {path}: lacks column {missing[0]}; the columns are those of docs/emulation.md"
        )
    return table


MEASURED, RECORDED = "measured", "recorded"
_ADDITIVE_OF_RECORDED = "additive, recorded Optane"


def timing_table(study_file: Path, recorded: Path | None = None) -> pd.DataFrame:
    """Return a row for each method and configuration; `single_us` is the time that the method is compared with.

    For recorded kernels (`source`) only sums are compared, with recorded times.

    Raises:
        DamagedFileError: the study cannot be read.
        BadInputError: the table of recorded kernels cannot.
    """
    study, provenance = load_with_provenance(study_file, "timing_study", TimingStudy)
    single = {(one.kernel, one.configuration): one.time_us for one in study.times if one.way is TimingMethod.SINGLE}
    costs = {cost.way: cost for cost in study.costs}
    table = pd.DataFrame(
        [
            {"source": MEASURED, "way": str(one.way)}
            | fields_of(one, "kernel", "op", "configuration", "slow_operands", "time_us")
            | {"single_us": single[one.kernel, one.configuration]}
            | fields_of(one, "lower_quartile_us", "upper_quartile_us", "repeats")
            | {"way_seconds": costs[one.way].seconds, "way_runs": costs[one.way].runs}
            for one in study.times
        ]
    )
    if recorded is not None:
        sums = sums_of_recorded(recorded).assign(source=RECORDED, way=_ADDITIVE_OF_RECORDED)
        table = pd.concat([table, sums], ignore_index=True)
    table["difference_percent"] = 100 * (table["time_us"] / table["single_us"] - 1)
    shared = fields_of(study, "network", "scale", "batch", "machine", "threads", "tier_reality") | {
        "slow_memory": slow_memory_text(provenance),
        "seed": study.seed,
        "step_repeats": study.repeats,
        "cpu_model": provenance.get("cpu_model", ""),
        "versions": versions_text(provenance),
    }
    return table.assign(**shared)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each method: its cost, its differences from `single`, and whether these are noise.

    Differences are relative to `single`, in %: median and 90th percentile of their size over configurations, and that
    of the sum of all times. `spread_percent` is the median, over configurations, of the interquartile range of the runs
    of one configuration over their median. A method is `inside_noise` where its median difference is at most the spread
    of `single`: a repeated measurement differs by as much. `fastest_inside_noise` marks the quickest of these.
    """
    single = table[(table["source"] == MEASURED) & (table["way"] == str(TimingMethod.SINGLE))]
    noise, single_s = 100 * _spreads(single).median(), single["way_seconds"].iloc[0]
    rows = []
    for (source, method), of_method in table.groupby(["source", "way"], sort=False):
        size = of_method["difference_percent"].abs()
        seconds = of_method["way_seconds"].iloc[0]
        rows.append(
            {
                "source": source,
                "way": method,
                "configurations": len(of_method),
                "runs": of_method["way_runs"].iloc[0],
                "seconds": seconds,
                "speedup": single_s / seconds,
                "median_difference_percent": size.median(),
                "p90_difference_percent": size.quantile(0.9),
                "sum_difference_percent": 100 * (of_method["time_us"].sum() / of_method["single_us"].sum() - 1),
                "spread_percent": 100 * _spreads(of_method).median(),
                "inside_noise": bool(source == MEASURED and size.median() <= noise),
            }
        )
    methods = pd.DataFrame(rows)
    candidates = methods[methods["inside_noise"] & (methods["way"] != str(TimingMethod.AGAIN))]
    quickest = candidates["seconds"].idxmin() if len(candidates) else None
    return methods.assign(fastest_inside_noise=[index == quickest for index in methods.index])


def _spreads(times: pd.DataFrame) -> pd.Series:
    """Return the interquartile range over the median time, (rows,); NaN for sums, which have none."""
    return ((times["upper_quartile_us"] - times["lower_quartile_us"]) / times["time_us"]).astype(float)


_METHODS = tuple(map(str, TimingMethod))
_COMPARED = tuple(method for method in _METHODS if method != TimingMethod.SINGLE)
_SHOWN_QUANTILE = 0.99
"""Differences beyond it stand at the edge: one kernel that was disturbed would flatten the rest."""


def make_timing_figure(
    study_file: Path, recorded: Path | None, csv: Path, summary_csv: Path, style: StyleConfig
) -> pd.DataFrame:
    """Make both tables of the measurements, .pdf and .png beside the first; return the summary.

    Raises:
        DamagedFileError: the measurements cannot be read.
        BadInputError: the table of recorded kernels cannot.
    """
    write_table(timing_table(study_file, recorded), csv)
    draw_to_files(draw_timing_study, read_table(csv), csv, style)
    methods = summary(read_table(csv))
    write_table(methods, summary_csv)
    return methods


def draw_timing_study(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the difference, the spread and the cost of the methods, a panel each, and sums of recorded kernels."""
    measured, recorded = (table[table["source"] == source] for source in (MEASURED, RECORDED))
    figure, axes_of = panels(3 if recorded.empty else 4, style)
    colors = dict(zip(_METHODS, sns.color_palette(style.palette, len(_METHODS)), strict=True))
    compared = _draw_differences(
        axes_of[0], measured[measured["way"].isin(_COMPARED)], "one configuration at a time, us"
    )
    for method in _COMPARED:
        of_method = compared[compared["way"] == method]
        look = {"s": 7, "color": colors[method], "label": method, "alpha": 0.7, "linewidth": 0}
        axes_of[0].scatter(of_method["single_us"], of_method["difference_percent"], **look)
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_COMPARED))
    _draw_spreads(axes_of[1], measured, colors)
    _draw_costs(axes_of[2], measured, colors)
    titles = ["difference from single", "spread of one configuration", "cost of all configurations"]
    if not recorded.empty:
        recorded = _draw_differences(axes_of[3], recorded, "as recorded, us")
        look = {"s": 3, "color": GRAY, "alpha": 0.3, "linewidth": 0, "rasterized": True}
        axes_of[3].scatter(recorded["single_us"], recorded["difference_percent"], **look)
        titles.append("sums of recorded kernels")
    for letter, axes, title in zip(string.ascii_lowercase, axes_of, titles, strict=False):
        finish(axes, letter, title)
    return figure, _caption(table)


def _draw_differences(axes: Axes, table: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Prepare axes for the differences of a table; return it with differences beyond the axes at their edge."""
    edge = max(1.0, float(table["difference_percent"].abs().quantile(_SHOWN_QUANTILE)))
    axes.set_xscale("log")
    axes.set_xlabel(f"kernel time, {reference}")
    axes.set_ylabel("difference, %")
    axes.set_ylim(-1.05 * edge, 1.05 * edge)
    axes.axhline(0.0, color=GRAY, linewidth=0.6)
    return table.assign(difference_percent=table["difference_percent"].clip(-edge, edge))


def _draw_spreads(axes: Axes, measured: pd.DataFrame, colors: dict[str, tuple[float, float, float]]) -> None:
    """Draw a box for each method: over configurations, quartiles of its runs' interquartile range over their median."""
    spreads = {str(method): 100 * of.dropna() for method, of in _spreads(measured).groupby(measured["way"])}
    methods = [method for method in _METHODS if len(spreads.get(method, ()))]
    look = {"showfliers": False, "patch_artist": True, "medianprops": {"color": GRAY}}
    drawn = axes.boxplot([spreads[method] for method in methods], tick_labels=methods, **look)
    for box, method in zip(drawn["boxes"], methods, strict=True):
        box.set_facecolor(colors[method])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("interquartile range, %")
    axes.tick_params(axis="x", labelrotation=20)


def _draw_costs(axes: Axes, measured: pd.DataFrame, colors: dict[str, tuple[float, float, float]]) -> None:
    seconds = measured.drop_duplicates("way").set_index("way")["way_seconds"].astype(float)
    methods = [method for method in _METHODS if method in seconds.index and method != TimingMethod.AGAIN]
    bars = axes.bar(methods, list(seconds[methods]), color=[colors[method] for method in methods], linewidth=0)
    speedups = [f"{seconds[TimingMethod.SINGLE] / seconds[method]:.3g}x" for method in methods]
    axes.bar_label(bars, speedups, fontsize="small")
    axes.margins(y=0.1)  # room for the label of the tallest bar
    axes.set_ylabel("wall time, s")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", labelrotation=20)


def _caption(table: pd.DataFrame) -> str:
    first, methods = table.iloc[0], summary(table).set_index("way")
    known = ", so that configurations add up but for noise" if first["tier_reality"] == "emulated" else ""
    differences = "; ".join(
        f"{method} {row['median_difference_percent']:.2g} % (90th percentile {row['p90_difference_percent']:.2g} %)"
        for method, row in methods.iterrows()
        if method != TimingMethod.SINGLE
    )
    recorded = (
        f" Sums of recorded kernels (Optane; those of at least {MIN_US} us all fast) are compared with recorded times."
        if RECORDED in set(table["source"])
        else ""
    )
    quickest = methods.index[methods["fastest_inside_noise"]]
    verdict = f" The quickest inside the noise: {quickest[0]}." if len(quickest) else ""
    return (
        f"Kernels of {first['network']} (batch {first['batch']}), scale {first['scale']}, each timed in every "
        f"configuration; {machine_text(first)}{known}. "
        f"Steps were run {first['step_repeats']} times for each set of configurations. Median size of the difference "
        f"from one configuration at a time: {differences}.{recorded}{verdict} Points beyond the 99th percentile stand "
        f"at the edge. Seed {first['seed']}. {first['versions']}."
    )
