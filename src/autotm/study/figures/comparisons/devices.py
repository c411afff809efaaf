"""What a step loses on each of several slow memories: would CXL memory do?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from autotm.model.files import BadInputError, load
from autotm.model.measurement import Record
from autotm.model.study import ALL_SLOW, StyleConfig
from autotm.study.drawing import (
    GRAY,
    Drawn,
    caption,
    finish,
    limits_of,
    optimizer_colors,
    panels,
    series_name,
    title,
)
from autotm.study.figures.comparisons.bars import bars
from autotm.study.tables import marked, require_one, table_of_records

_SLOW = "all-slow"
_LONG = 9
"""Characters of a name that fit below its bars."""


def table_of_devices(records: Sequence[Path], devices: Mapping[str, str]) -> pd.DataFrame:
    """As `table_of_records`, of several machines that differ in their slow memory only; `device` says which it is.

    Args:
        records: of one network, on each of the machines.
        devices: by name of a machine what its slow memory is; their order is that of the rows.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: a machine has no record, or the runs are not of one study, processor and kind of slow memory.
    """
    found: dict[str, list[Path]] = {name: [] for name in devices}
    for path in records:
        found.setdefault(load(path, "record", Record).machine, []).append(path)
    if unknown := [name for name, of in found.items() if not of or name not in devices]:
        raise BadInputError(f"figure devices: machine {unknown[0]} has no record, or is not one that is compared")
    tables = [table_of_records(of).assign(device=devices[name]) for name, of in found.items()]
    table = pd.concat(tables, ignore_index=True)
    require_one(table, "network", "scale", "counts", "threads", "cpu_model", "tier_reality")
    return table


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A group of bars for each device: everything slow, then each optimizer at the limit.

    Raises:
        BadInputError: runs of several networks, or at several limits between the ends.
    """
    require_one(table, "network")
    limits = limits_of(table, ends=False)
    if len(limits) != 1:
        raise BadInputError(f"figure devices: runs at one limit between all slow and all fast, not {limits}")
    between = table[table["limit"] == limits[0]]
    colors = optimizer_colors(style)
    shown = [("all slow", table[table["limit"] == ALL_SLOW], colors[_SLOW])]
    shown += [
        (f"{series_name(name)} {limits[0]}", between[between["optimizer"] == name], colors[name])
        for name in dict.fromkeys(between["optimizer"])
    ]
    names = list(dict.fromkeys(table["device"]))
    figure, (axes,) = panels(1, style, widen=1.6)
    series = [(label, _at(runs, names, "slowdown"), color) for label, runs, color in shown]
    hollow = [[bool(one) for one in _at(runs.assign(hollow=marked(runs)), names, "hollow")] for _, runs, _ in shown]
    bars(axes, [_label(name) for name in names], series, hollow)
    _mark_predictions(axes, [_at(runs, names, "predicted_slowdown") for _, runs, _ in shown])
    axes.axhline(1.0, color=GRAY, linewidth=0.8)
    axes.set_xlabel(f"slow memory ({table['tier_reality'].iloc[0]})")
    axes.set_ylabel("slow-down over all fast\n(lower is better)")
    axes.legend()
    finish(axes, "", title(str(table["network"].iloc[0])))
    machines = ", ".join(dict.fromkeys(table["machine"]))
    return figure, f"{caption(table.assign(machine=machines))} {_machines(table)}"


def _label(name: str) -> str:
    """Long names take two lines."""
    return name.replace("-", "-\n", 1) if len(name) > _LONG else name


def _mark_predictions(axes: Axes, heights: Sequence[Sequence[float]]) -> None:
    """A dash at what was predicted of each bar."""
    bars_of = [list(container) for container in axes.containers]
    middles = [bar.get_x() + bar.get_width() / 2 for series in bars_of for bar in series]
    marks = [height or float("nan") for series in heights for height in series]
    axes.plot(middles, marks, "_", color="black", markersize=9, label="predicted")


def _at(runs: pd.DataFrame, names: Sequence[str], column: str) -> list[float]:
    """The column on each device; 0 where there is no such run."""
    found = runs.drop_duplicates("device").set_index("device")[column]
    return [float(found.get(name, 0.0)) for name in names]


def _machines(table: pd.DataFrame) -> str:
    pairs = table.drop_duplicates("device")
    others = [f"{row['machine']} has {row['device']}" for _, row in pairs.iterrows() if row["device"] != row["machine"]]
    named = f" ({', '.join(others)})" if others else ""
    return (
        f"Machines are named by their slow memory{named}. Bars: measured. Line: all fast. What an emulated device "
        "costs, and where its numbers are from, stands in its file in config/devices."
    )
