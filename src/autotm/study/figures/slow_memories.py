"""Figures of slow memories: what a step loses on each, and what copies from and to each reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from autotm.memory.emulation import load_device
from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, load_with_provenance
from autotm.model.graph import Tier
from autotm.model.limit import ALL_SLOW
from autotm.model.links import Links
from autotm.model.record import Record
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    machine_text,
    optimizer_colors,
    panels,
    series_name,
    title,
)
from autotm.study.figures.comparisons import bars, values
from autotm.study.tables import disturbed_at, limits_of, require_one, table_of_records, versions_text

_LONG = 9
"""Characters of a name that fit below its bars; a longer one takes two lines."""


def table_of_devices(records: Sequence[Path], devices: Mapping[str, str]) -> pd.DataFrame:
    """Return `table_of_records` of several machines that differ in their slow memory only, which `device` names.

    Args:
        records: of one network, on each of the machines.
        devices: by name of a machine what its slow memory is; their order is that of the rows.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: a machine has no record, or the runs are not of one study, processor and kind of slow memory.
    """
    by_machine: dict[str, list[Path]] = {name: [] for name in devices}
    for path in records:
        by_machine.setdefault(load(path, "record", Record).machine, []).append(path)
    if unknown := [name for name, of in by_machine.items() if not of or name not in devices]:
        raise BadInputError(f"figure devices: machine {unknown[0]} has no record, or is not one that is compared")
    tables = [table_of_records(of).assign(device=devices[name]) for name, of in by_machine.items()]
    table = pd.concat(tables, ignore_index=True)
    require_one(table, "network", "scale", "counts", "threads", "cpu_model", "tier_reality")
    return table


def draw_devices(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the slow-down on each device, a group of bars: everything slow, then each optimizer at the limit.

    Raises:
        BadInputError: runs of several networks, or at several limits between the ends.
    """
    require_one(table, "network")
    limits = limits_of(table, ends=False)
    if len(limits) != 1:
        raise BadInputError(f"figure devices: runs at one limit between all slow and all fast, not {limits}")
    between = table[table["limit"] == limits[0]]
    colors = optimizer_colors(style)
    shown = [("all slow", table[table["limit"] == str(ALL_SLOW)], colors["all-slow"])]
    shown += [
        (f"{series_name(name)} {limits[0]}", between[between["optimizer"] == name], colors[name])
        for name in dict.fromkeys(between["optimizer"])
    ]
    names = list(dict.fromkeys(table["device"]))
    figure, (axes,) = panels(1, style, widen=1.6)
    series = [(label, values(runs, names, "slowdown", "device", missing=0.0), color) for label, runs, color in shown]
    hollow = [disturbed_at(runs, names, "device") for _, runs, _ in shown]
    bars(axes, [name.replace("-", "-\n", 1) if len(name) > _LONG else name for name in names], series, hollow)
    middles = [bar.get_x() + bar.get_width() / 2 for container in axes.containers for bar in container]
    predicted = [one for _, runs, _ in shown for one in values(runs, names, "predicted_slowdown", "device")]
    axes.plot(middles, predicted, "_", color="black", markersize=9, label="predicted")
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xlabel(f"slow memory ({table['tier_reality'].iloc[0]})")
    axes.set_ylabel("slow-down over all fast\n(lower is better)")
    axes.legend()
    finish(axes, "", title(str(table["network"].iloc[0])))
    pairs = table.drop_duplicates("device")
    others = [f"{row['machine']} has {row['device']}" for _, row in pairs.iterrows() if row["device"] != row["machine"]]
    named = f" ({', '.join(others)})" if others else ""
    return figure, (
        f"{caption(table.assign(machine=', '.join(dict.fromkeys(table['machine']))))} "
        f"Machines are named by their slow memory{named}. Bars: measured. Line: all fast. What an emulated device "
        "costs, and where its numbers are from, stands in its file in config/devices."
    )


_TO = {Tier.FAST: "to fast memory", Tier.SLOW: "to slow memory"}
_KEYS = {Tier.FAST: "to_fast_bytes_per_s", Tier.SLOW: "to_slow_bytes_per_s"}
_MOVES = {"moves": "blocking", "asynchronous_moves": "asynchronous"}
_TALLER = 1.4
"""Height over that of other figures: a legend of four lines is below the panels."""
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
"""Copies are timed at powers of two."""
_COPY, _MOVE, _STRETCHED, _PUBLISHED = "copy", "move", "device", "published"


def table_of_links(links: Path, device: Path | None) -> pd.DataFrame:
    """Return a row for each direction, series and size.

    Columns are described in `study/columns.py`. Of the series, `copy` is what the memory gives without emulated waits,
    `move` as programs make them, waits included. `device` is the device file of an emulated slow tier.

    Raises:
        DamagedFileError: the links cannot be read.
        BadInputError: the device file cannot be read.
    """
    measured, source = load_with_provenance(links, "links", Links)
    constants = load_device(device.parent, device.stem).model_dump() if device is not None else {}
    shared = {
        **{key: source[key] for key in ("machine", "cpu_model", "threads", "tier_reality", "seed")},
        "device": device.stem if device is not None else "",
        "published_in": constants.get("source", ""),
        "disturbed": bool(measured.disturbed),
        "versions": versions_text(source),
    }
    rows = list(_points(measured, constants))
    return pd.DataFrame([{"team": 0, "stores": "", "ahead_bytes": 0, "mode": "", **row, **shared} for row in rows])


def _points(links: Links, constants: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield what was measured by size, then the device's bandwidths: as this process waits for them, and published."""

    def points(to: Tier, measured: Iterable[tuple[int, int]], look: dict[str, object]) -> Iterator[dict[str, object]]:
        for size, time_ns in measured:
            rate = {"copied_bytes": size, "took_ns": time_ns, "bytes_per_s": 1e9 * size / time_ns}
            yield {"to": str(to), **look, **rate, **look}  # a rate that is known replaces the quotient

    for curve in links.curves:
        look = {"series": _COPY, "team": curve.threads, "stores": "streaming" if curve.streams else "plain"}
        yield from points(curve.destination, curve.points, look | {"ahead_bytes": curve.ahead_bytes})
    for mode, pair in (("blocking", links), ("asynchronous", links.asynchronous)):
        for link in () if pair is None else (pair.to_fast, pair.to_slow):
            yield from points(link.destination, link.points, {"series": _MOVE, "mode": mode})
    sizes = [size for size, _ in links.to_fast.points]
    for (key, mode), (tier, name) in itertools.product(_MOVES.items(), _KEYS.items()):
        for series, stretch in ((_STRETCHED, links.emulation_stretch), (_PUBLISHED, 1.0)):
            if key in constants:
                rate = float(constants[key][name]) / stretch
                ends = ((size, max(round(1e9 * size / rate), 1)) for size in (sizes[0], sizes[-1]))
                yield from points(tier, ends, {"series": series, "mode": mode, "bytes_per_s": rate})


def draw_links(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw a panel for each direction: rates of measured copies by size, beside the published rates of the device."""
    figure, axes_of = panels(len(_TO), style, widen=1.3)
    figure.set_figheight(_TALLER * figure.get_figheight())
    sizes = sorted(set(table["copied_bytes"]))
    sizes = sizes[:: max(1, len(sizes) // 4)]
    for letter, axes, (tier, name) in zip("ab", axes_of, _TO.items(), strict=True):
        shown = table[table["to"] == str(tier)]
        for label, look, line in _lines(shown, style):
            axes.plot(line["copied_bytes"], line["bytes_per_s"] / 1e9, label=label, **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        units = [next((unit for unit, bytes_of in _UNITS.items() if size >= bytes_of), "B") for size in sizes]
        axes.set_xticks(sizes, [f"{size / _UNITS[unit]:g} {unit}" for size, unit in zip(sizes, units, strict=True)])
        axes.minorticks_off()
        axes.set_xlabel("size of the copy")
        axes.set_ylim(0.7 * float(table["bytes_per_s"].min()) / 1e9, 1.4 * float(table["bytes_per_s"].max()) / 1e9)
        finish(axes, letter, name)
    axes_of[0].set_ylabel("GB copied a second")
    handles = {line.get_label(): line for axes in axes_of for line in axes.lines}
    figure.legend(handles=[*handles.values()], loc="outside lower center", ncols=3)
    return figure, _caption(table)


def _lines(shown: pd.DataFrame, style: StyleConfig) -> Iterator[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Yield label, look and rows of each line; of copies those of one thread and of all, at each size the quickest."""
    colors = list(optimizer_colors(style).values())
    copies = shown[shown["series"] == _COPY]
    ends = sorted({int(copies["team"].min()), int(copies["team"].max())}) if len(copies) else []
    for threads in ends:
        for stores, dashes in (("plain", ":"), ("streaming", "-")):
            line = copies[(copies["team"] == threads) & (copies["stores"] == stores)]
            line = line.loc[line.groupby("copied_bytes")["took_ns"].idxmin()]
            label = f"memory, {stores} stores, {threads} thread{'s' if threads > 1 else ''}"
            color = GRAY if threads == ends[0] else "black"
            if len(line):
                yield label, {"color": color, "linestyle": dashes, "linewidth": 0.9}, line
    for mode, color in zip(_MOVES.values(), colors, strict=False):
        of_mode = shown[shown["mode"] == mode]
        for series, label, look in (
            (_MOVE, f"{mode} moves, measured", {"marker": "o"}),
            (_STRETCHED, f"{mode} moves, emulated wait", {"linestyle": "--", "linewidth": 0.9}),
            (_PUBLISHED, f"{mode} moves, published", {"linestyle": "-.", "linewidth": 0.9, "alpha": 0.5}),
        ):
            line = of_mode[of_mode["series"] == series]
            if len(line):
                yield label, {"color": color, **look}, line


def _caption(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    waits = held = device = ""
    if first["tier_reality"] == "emulated":
        waits = " Measured moves hold the EMULATED wait; lines called memory copy between two pools in fast memory."
    if first["device"]:
        device = (
            f" Emulated wait: the constants of {first['device']} as this process waits for them; published: as its "
            f"file has them, from: {str(first['published_in']).strip().rstrip('.')}."
        )
    if first["disturbed"]:
        held = " Others held the cores: measured rates are too low."
    return (
        f"Medians of copies between the two memories; {machine_text(first)}.{waits}{device}{held} Seed "
        f"{first['seed']}. {first['versions']}."
    )
