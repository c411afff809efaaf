"""Training beyond a GPU's memory, modelled or measured: its tables, figure 12, and the timeline of a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, load_with_provenance
from autotm.model.paths import FRAMEWORK_FILE
from autotm.model.plan import GPU_RIVALS, MANAGED_MEMORY, SAVE_ON_CPU, Status
from autotm.model.record import KERNEL_BY_KERNEL, FrameworkRecord, Record
from autotm.model.timeline import Engine, Lane, ModelledStep, Timeline
from autotm.study.drawing import (
    GRAY,
    Drawn,
    disturbed_text,
    finish,
    gap_text,
    optimizer_colors,
    panels,
    series_name,
    title,
)
from autotm.study.figures.comparisons import bars
from autotm.study.tables import DISTURBED, fields_of, is_disturbed, is_modelled, require_one, versions_text

ORACLE = "oracle"
LEFT_OUT = "left_out"
"""Column: why a step has no bar; empty where it has one, and where it does not fit."""
_RECORD = "record.json"
_MODELLED_WORK = ("network", "batch", "scale", "machine", "gpu", "tier_reality", "optimizer", "limit")
"""Columns that say which step a modelled one is."""
_ENGINES = {Lane.COMPUTE: Engine.COMPUTE, Lane.INWARD: Engine.IN, Lane.OUTWARD: Engine.OUT}


def table_of_steps(paths: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each step, in the order given, those that PyTorch made itself last.

    `speedup` is the baseline's `step_s` over that of the step. Measured columns of a measured step
    that does not fit are empty. `oracle_s` of measured steps is the least over the records of a network and batch: each
    kernel's fastest implementation, as profiled or, where that was faster, as it ran.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: some are modelled and some measured, of several machines, or without a baseline; a record names
            no GPU, or records name several.
    """
    if not _are_measured(paths):
        table = pd.DataFrame(map(_modelled_row, paths))
        require_one(table, "machine", "counts", "tier_reality")
    else:
        rows = [_record_row(path) for path in paths if path.name == _RECORD]
        require_one(pd.DataFrame(rows), "tier_reality")
        table = pd.DataFrame([*rows, *(_framework_row(path) for path in paths if path.name == FRAMEWORK_FILE)])
        require_one(table, "machine", "counts")
        # Where a CPU stands in for the GPU, the caption says so, and names may differ.
        require_one(table[table["fits"].astype(bool) & (table["tier_reality"] != "stand-in")], "gpu")
        table["oracle_s"] = table.groupby(["network", "batch"])["oracle_s"].transform("min")
    base = table[table["optimizer"] == MANAGED_MEMORY].set_index(["network", "batch"])["step_s"]
    own = list(zip(table["network"], table["batch"], strict=True))
    if missing := [f"{network} (batch {batch})" for network, batch in own if (network, batch) not in base.index]:
        raise BadInputError(f"figure 12: {missing[0]} has no step of '{MANAGED_MEMORY}' to be compared with")
    return table.assign(speedup=[base[place] for place in own] / table["step_s"])


def table_of_lanes(paths: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each thing that an engine did in a modelled step, or a stream in a measured one.

    What a stream did is in the timeline beside its record; a step that does not fit has one row, without a name.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: as `table_of_steps`; steps of several networks, batches or limits.
    """
    events_of = _stream_events if _are_measured(paths) else _engine_events
    table = pd.DataFrame(itertools.chain.from_iterable(map(events_of, paths)))
    require_one(table, "network", "batch", "scale", "machine", "limit", "tier_reality")
    return table


def _are_measured(paths: Sequence[Path]) -> bool:
    measured = {path.name in {_RECORD, FRAMEWORK_FILE}: path for path in paths}
    if len(measured) > 1:
        raise BadInputError(
            f"figure 12: {measured[False]} is modelled, {measured[True]} is measured: these do not compare; draw "
            "a figure of each"
        )
    return True in measured


def _modelled_row(path: Path) -> dict[str, Any]:
    step, source = load_with_provenance(path, "modelled_step", ModelledStep)
    return {
        **fields_of(step, *_MODELLED_WORK, "counts", "dram_limit_bytes"),
        "io_bytes": step.io_size,
        **fields_of(step, "peak_live_bytes", "fits", "most_bytes"),
        **{f"{name}_s": getattr(step, f"{name}_us") / 1e6 for name in ("step", "kernels", "repeated", "oracle")},
        **fields_of(step, "in_bytes", "out_bytes"),
        "predicted_s": None if step.predicted_us is None else step.predicted_us / 1e6,
        "bound_s": None if step.bound_us is None else step.bound_us / 1e6,
        **fields_of(step, "gap", "solver_status"),
        "winograd_kernels": step.implementations.get("winograd", 0),
        "remark": step.remark,
        **_came_from(source),
    }


def _engine_events(path: Path) -> Iterator[dict[str, Any]]:
    step, source = load_with_provenance(path, "modelled_step", ModelledStep)
    shared = fields_of(step, *_MODELLED_WORK, "fits") | _came_from(source)
    for event in step.events:
        yield {**shared, "engine": str(event.engine), **fields_of(event, "name", "start_us", "end_us")}


def _record_row(path: Path) -> dict[str, Any]:
    """Return the row of a record of a GPU; its columns are those of modelled steps, and what was measured."""
    record, source = load_with_provenance(path, "record", Record)
    searched, median_s = record.solver_status != Status.NOT_OPTIMIZED, record.actual_runtime_median_s
    kernels_s = sum(record.kernel_times_us.values()) / 1e6 if record.fits else nan
    return {
        **_stream_work(path, record, source),
        **fields_of(record, "counts", "dram_limit_bytes"),
        "io_bytes": record.io_size,
        "peak_live_bytes": record.default_alloc_size,
        "fits": record.fits,
        LEFT_OUT: "",
        "most_bytes": record.dram_alloc_size,
        "step_s": nan if median_s is None else median_s,
        "kernels_s": kernels_s * (1 - record.repeated_share),
        "repeated_s": kernels_s * record.repeated_share,
        "oracle_s": record.oracle_time_us / 1e6,
        "in_bytes": record.bytes_moved_dram + record.bytes_async_moved_dram,
        "out_bytes": record.bytes_moved_pmem + record.bytes_async_moved_pmem,
        "predicted_s": record.predicted_runtime_s,
        "bound_s": record.bound_s if searched else None,
        "gap": record.gap if searched else None,
        "solver_status": record.solver_status,
        "winograd_kernels": record.implementations.get("winograd", 0),
        "remark": "",
        "samples": len(record.samples_s),
        DISTURBED: record.disturbed_steps_count,
        **fields_of(record, "verified_steps", "verified_against"),
        **_came_from(source),
    }


def _stream_events(path: Path) -> Iterator[dict[str, Any]]:
    record, source = load_with_provenance(path, "record", Record)
    shared = _stream_work(path, record, source) | {"fits": record.fits, **_came_from(source)}
    if not record.fits:
        yield {**shared, "engine": "", "name": "", "start_us": 0.0, "end_us": 0.0}
        return
    for one in load(path.with_name("timeline.json"), "timeline", Timeline).operations:
        times = {"start_us": one.start_ns / 1e3, "end_us": one.end_ns / 1e3}
        yield {**shared, "engine": str(_ENGINES[one.lane]), "name": one.name, **times}


def _stream_work(path: Path, record: Record, source: Mapping[str, Any]) -> dict[str, Any]:
    if "gpu" not in source:
        raise BadInputError(f"{path}: it names no GPU; figure 12 is of a machine of kind cuda, or of a modelled one")
    return {
        **fields_of(record, "network", "batch", "scale"),
        "machine": source["machine"],
        "gpu": source["gpu"],
        "gpu_driver": source.get("gpu_driver", ""),
        "cpu_model": source["cpu_model"],
        **fields_of(record, "tier_reality", "optimizer", "limit"),
    }


def _came_from(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": source["seed"], "versions": versions_text(source)}


def _framework_row(path: Path) -> dict[str, Any]:
    """Return the row of a framework's record; columns that only programs have are empty."""
    record, source = load_with_provenance(path, "framework_record", FrameworkRecord)
    remark = ""
    if record.framework:
        compared = "loss not compared"
        if record.exact_loss is not None and record.loss_margin is not None:
            apart = abs(record.losses[0] - record.plain_losses[0])
            compared = f"losses {apart:.1e} apart, {record.loss_margin:.1e} allowed"
        remark = f"{record.framework} on {record.device}; {compared}"
    return {
        **fields_of(record, "network", "batch", "scale"),
        "machine": source["machine"],
        "gpu": record.device or source["gpu"],
        "gpu_driver": source["gpu_driver"],
        "cpu_model": source["cpu_model"],
        **fields_of(record, "tier_reality", "optimizer", "limit", "counts", "dram_limit_bytes"),
        "io_bytes": record.io_size,
        **fields_of(record, "peak_live_bytes", "fits", LEFT_OUT),
        "most_bytes": nan if record.most_bytes is None else record.most_bytes,
        "step_s": nan if record.step_s is None else record.step_s,
        "oracle_s": nan,
        "remark": remark,
        "samples": len(record.samples_s),
        DISTURBED: record.disturbed_steps_count,
        "verified_steps": nan,
        **_came_from(source),
    }


def _has_bar(table: pd.DataFrame) -> pd.Series:
    """Return which rows have something to draw: a bar, or a cross."""
    if LEFT_OUT not in table:
        return pd.Series(data=True, index=table.index)
    return table[LEFT_OUT].isna() | (table[LEFT_OUT] == "")


def _framework_text(table: pd.DataFrame) -> str:
    """Return the caption's text on PyTorch's own step: what ran, what is left out and why; empty if not asked for."""
    own = table[table["optimizer"] == SAVE_ON_CPU]
    if own.empty or LEFT_OUT not in own:
        return ""
    shown, texts = own[_has_bar(own)], []
    if len(shown):
        ran = "; ".join(f"{row['network']}: {row['remark']}" for _, row in shown.iterrows())
        texts.append(f"save_on_cpu is PyTorch's own step of the same network ({ran}).")
    if (shown["tier_reality"] == "stand-in").any():
        texts.append("It ran on NO GPU: its time says nothing about one.")
    texts += [f"save_on_cpu is left out: {reason}." for reason in dict.fromkeys(own[~_has_bar(own)][LEFT_OUT])]
    return " ".join(texts) + " "


_NOT_MEASURED = "MODELLED, not measured: no GPU ran any of this"
"""The warning inside the figure, which stays with it wherever it is copied."""
_LEGEND_COLUMNS, _LEGEND_ROW = 2, 0.25
"""The legend is above the bars; a row of it takes this share of the highest one."""
_CROWDED = 5
"""The labels of more places than this would overlap, so they are rotated."""


def draw_fig12(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw figure 12: speed-up over managed memory, of plans and the oracle, and of the last plan beside rivals."""
    left_out = _framework_text(table)
    table = table.assign(**{DISTURBED: is_disturbed(table)})[_has_bar(table)]
    figure, axes = panels(2, style, widen=1.35)
    _mark_modelled(figure, table, style)
    optimizers = list(dict.fromkeys(table["optimizer"]))
    plans = [name for name in optimizers if name not in GPU_RIVALS]
    rivals = [name for name in optimizers if name in GPU_RIVALS and name != MANAGED_MEMORY]
    oracle = table.drop_duplicates(["network", "batch"]).copy()
    oracle["speedup"] *= oracle["step_s"] / oracle["oracle_s"]
    oracle["optimizer"], oracle["fits"], oracle[DISTURBED] = ORACLE, True, False
    shown = pd.concat([table, oracle])
    colors = {**optimizer_colors(style), ORACLE: GRAY}
    _panel(axes[0], shown, [*plans, ORACLE], colors)
    finish(axes[0], "a", "plans and oracle")
    _panel(axes[1], shown, [*plans[-1:], *rivals], colors)
    finish(axes[1], "b", "rivals of today")
    return figure, _caption(table, left_out)


def _panel(axes: Axes, table: pd.DataFrame, names: list[str], colors: Mapping[str, Any]) -> None:
    places = list(dict.fromkeys(zip(table["network"], table["batch"], strict=True)))
    by_place = table.set_index(["optimizer", "network", "batch"])
    series, hollow = [], []
    for number, name in enumerate(names):
        steps = by_place.reindex([(name, *place) for place in places])  # of steps that were not made, all is NaN
        heights = steps["speedup"].where(steps["fits"].eq(other=True)).astype(float).tolist()
        series.append((series_name(name), heights, colors[name]))
        hollow.append(steps[DISTURBED].eq(other=True).tolist())
        shift = (number - (len(names) - 1) / 2) * 0.8 / len(names)
        for place, is_unfit in enumerate(steps["fits"].eq(other=False)):
            if is_unfit:
                look = {"color": colors[name], "ha": "center", "va": "bottom", "fontsize": "large"}
                axes.text(place + shift, 0.0, "\N{MULTIPLICATION SIGN}", look)
    bars(axes, [f"{title(str(network))} ({batch})" for network, batch in places], series, hollow)
    if len(places) > _CROWDED:
        axes.tick_params(axis="x", rotation=40)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(places) - 0.5)  # A cross at an edge has no bar that would make room for it.
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    fitting = table[table["fits"].astype(bool) & table["optimizer"].isin(names)]
    headroom = 1 + _LEGEND_ROW * math.ceil(len(names) / _LEGEND_COLUMNS)
    axes.set_ylim(0, headroom * max(1.0, float(fitting["speedup"].max())))
    axes.set_ylabel(f"speed-up{', modelled' if is_modelled(table) else ''}\n(managed memory = 1)")
    axes.legend(loc="upper left", ncols=_LEGEND_COLUMNS)


def _caption(table: pd.DataFrame, of_frameworks: str) -> str:
    first, plans = table.iloc[0], table[table["gap"].notna()]
    proven = f"Plans are {gap_text(plans['gap'].max())} on the predicted step. " if len(plans) else ""
    how = "Steps are simulated on three engines (compute, in, out). " if is_modelled(table) else _measured_text(table)
    limits, scales = (", ".join(map(str, dict.fromkeys(table[key]))) for key in ("limit", "scale"))
    return (
        f"{_gpu_text(table)} Device memory for what is placed: {limits}; scale {scales}. {proven}"
        "Oracle: the fastest implementation of every kernel and no copies. A cross: the step does not fit. "
        f"{how}{of_frameworks}Machine {first['machine']}; seed {first['seed']}. {first['versions']}."
    )


def _mark_modelled(figure: Figure, table: pd.DataFrame, style: StyleConfig) -> None:
    """Write into the figure where nothing ran."""
    if is_modelled(table):
        figure.suptitle(_NOT_MEASURED, color="tab:red", fontsize=style.font_size_pt + 1, fontweight="bold")


def _gpu_text(table: pd.DataFrame) -> str:
    """Return which GPU a caption is about, and where its times come from."""
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
    """Return how steps were timed and verified, and what recomputation cost of the kernels' time where it ran."""
    ran, repeated = table[table["fits"].astype(bool)], ""
    by_kernel = int((ran["verified_against"] == KERNEL_BY_KERNEL).sum())
    there = f", which {by_kernel} of {len(ran)} steps met kernel by kernel, for want of memory" if by_kernel else ""
    again = ran[ran["repeated_s"] > 0]
    if len(again):
        shares = 100 * again["repeated_s"] / (again["kernels_s"] + again["repeated_s"])
        ends = dict.fromkeys((f"{shares.min():.2g}", f"{shares.max():.2g}"))
        repeated = f"Recomputation: {' to '.join(ends)} % of the kernels' time was repeated. "
    return (
        f"Steps are medians of at least {ran['samples'].min()} timed ones; {ran['verified_steps'].min():.0f} of each "
        f"program were compared bit for bit with the plain step{there}. {disturbed_text(table)}Managed memory: "
        f"cudaMallocManaged, device memory beyond the limit held by another allocation. {repeated}"
    )


_LANES = tuple(map(str, Engine))
_THICK = 0.8
"""Height of a lane's spans, where lanes are 1 apart."""
_MEASURED = (
    "Times are from event to event on three streams; what page faults of managed memory move is within its kernels. "
)


def draw_timeline(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw what each engine does in a step: a panel for each way of placing the tensors, with one axis of time."""
    steps = list(table.groupby("optimizer", sort=False))
    flat = style.model_copy(update={"panel_height_cm": max(2.1, 0.4 * style.panel_height_cm)})
    figure, axes = panels(len(steps), flat, columns=1, widen=2.2)
    _mark_modelled(figure, table, style)
    colors = optimizer_colors(style)
    longest_s = table["end_us"].max() / 1e6
    for panel, (name, step) in zip(axes, steps, strict=True):
        for place, lane in enumerate(_LANES):
            done = step[step["engine"] == lane]
            spans = list(zip(done["start_us"] / 1e6, (done["end_us"] - done["start_us"]) / 1e6, strict=True))
            bottom = len(_LANES) - 1 - place - _THICK / 2
            panel.broken_barh(spans, (bottom, _THICK), facecolor=colors[str(name)], linewidth=0, rasterized=True)
        panel.set_yticks(range(len(_LANES)), reversed(_LANES))
        panel.set_ylim(-_THICK, len(_LANES) - 1 + _THICK)
        panel.set_xlim(0, longest_s)
        panel.grid(visible=False, axis="y")
        unfit = "" if bool(step["fits"].iloc[0]) else ", does not fit"
        lasted = f"{step['end_us'].max() / 1e6:.3g} s" if step["end_us"].any() else "not run"
        finish(panel, "", f"{series_name(str(name))}: {lasted}{unfit}")
    axes[-1].set_xlabel(f"{'modelled ' if is_modelled(table) else ''}time of one step (s)")
    first, how = table.iloc[0], "" if is_modelled(table) else _MEASURED
    text = (
        f"{title(str(first['network']))}, batch {first['batch']}, scale {first['scale']}. "
        f"{_gpu_text(table)} {how}Device memory for what is placed: {first['limit']}. "
        f"Machine {first['machine']}; seed {first['seed']}. {first['versions']}."
    )
    return figure, text
