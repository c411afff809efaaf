"""The heap plot: where each tensor of a plan is in the two pools, over the predicted time of a step."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from autotm.check.plan import kernel_times_us
from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, load_with_provenance
from autotm.model.graph import Graph, Tier
from autotm.model.limit import counting
from autotm.model.plan import Plan
from autotm.model.profile import read_profile
from autotm.model.program import Program
from autotm.model.provenance import slow_memory_text
from autotm.study.drawing import (
    GRAY,
    Drawn,
    count_bytes,
    finish,
    gap_text,
    machine_text,
    optimizer_colors,
    panels,
    title,
)
from autotm.study.placed import stay_offsets
from autotm.study.tables import fields_of, versions_text

_POOLS = ((Tier.FAST, "fast pool"), (Tier.SLOW, "slow pool"))
_US_PER_MS = 1e3
_EDGED_SHARE = 0.004
"""Smaller rectangles, as a share of their panel's width or height, have no edge: they would be all edge."""


def table_of_heap(graph: Path, profile: Path, plan: Path, program: Path) -> pd.DataFrame:
    """Return a row for each stay of each tensor, by start.

    Columns are described in `study/columns.py`; the kernels of a stay are [`start`, `end`). Times are sums of kernels
    as the plan places them; moves that a step waits for add nothing.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: the program was made from another plan, or its memory is one pool.
    """
    whole, source = load_with_provenance(graph, "graph", Graph)
    placed, laid = load(plan, "plan", Plan), load(program, "program", Program)
    if placed.one_pool is not None:
        raise BadInputError(
            f"{plan}: optimizer '{placed.optimizer}' has one pool, behind a cache or of pages; the heap plot shows two"
        )
    counted, timed = counting(whole, placed.counts), read_profile(profile)
    step = placed.step_of(counted)
    times = [0.0, *accumulate(kernel_times_us(counted, timed, placed))]
    arrivals = {(move.tensor, move.destination, move.start): move for move in placed.moves}
    moving = {move.tensor for move in placed.moves}
    shared = {
        **fields_of(step, "network", "batch", "scale"),
        **fields_of(placed, "optimizer", "limit", "dram_limit_bytes", "gap"),
        "solver_status": str(placed.status),
        "seed": source["seed"],
        **{key: timed.provenance[key] for key in ("machine", "cpu_model", "threads", "tier_reality")},
        "slow_memory": slow_memory_text(timed.provenance),
        "versions": versions_text(timed.provenance),
    }
    rows = []
    for stay, offset in zip(placed.stays, stay_offsets(placed, laid), strict=True):
        move = arrivals.get((stay.tensor, stay.tier, stay.start))
        row = {
            "tensor": stay.tensor,
            "tier": str(stay.tier),
            "offset_bytes": offset,
            "size_bytes": step.by_name[stay.tensor].allocated_bytes,
            **fields_of(stay, "start", "end"),
            "start_us": times[stay.start],
            "end_us": times[stay.end],
            "moves": stay.tensor in moving,
            "began": "born" if move is None else "asynchronous" if move.is_asynchronous else "blocking",
            "arrival_us": times[stay.start if move is None else move.before],
        }
        rows.append(row | shared)
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw a panel for each pool, a rectangle for each stay."""
    figure, axes_of = panels(len(_POOLS), style, columns=1, widen=2.0)
    first, last_ms = table.iloc[0], float(table["end_us"].max()) / _US_PER_MS
    limit = float(first["dram_limit_bytes"])
    ends = table["offset_bytes"] + table["size_bytes"]
    tops = {str(tier): float(of_tier.max()) for tier, of_tier in ends.groupby(table["tier"])}
    for letter, axes, (tier, name) in zip("ab", axes_of, _POOLS, strict=True):
        top = tops.get(str(tier), 1.0)
        _draw_pool(axes, table[table["tier"] == str(tier)], (last_ms, top), style)
        if tier is Tier.FAST:
            axes.axhline(limit, color=GRAY, linewidth=0.8, linestyle=(0, (4, 2)))
            top = max(top, limit)
        axes.set_xlim(0, last_ms)
        axes.set_ylim(0, 1.03 * top)
        axes.set_ylabel(f"address ({count_bytes(axes.yaxis, min(tops.values()))})")
        axes.grid(visible=False)
        finish(axes, letter, name)
    axes_of[-1].set_xlabel("predicted time of kernels (ms)")
    colors, moves, began = optimizer_colors(style), _moves(style), set(table["began"])
    handles: dict[str, Patch | Line2D] = {
        "born": Patch(color=colors["static"], alpha=0.75, label="tensor that stays"),
        "moved": Patch(color=colors["synchronous"], alpha=0.75, label="tensor that moves"),
        "blocking": Line2D([], [], color=moves["blocking"], label="arrives by a move that the step waits for"),
        "asynchronous": Line2D([], [], color=moves["asynchronous"], label="arrives by a move beside kernels"),
    }
    shown = {"born", *began, *(["moved"] if began - {"born"} else [])}
    limit_line = Line2D([], [], color=GRAY, linewidth=0.8, linestyle=(0, (4, 2)), label="limit")
    named = [*(handle for name, handle in handles.items() if name in shown), limit_line]
    figure.legend(handles=named, loc="outside lower center", ncols=5)
    return figure, _caption(table)


def _draw_pool(axes: Axes, stays: pd.DataFrame, extent: tuple[float, float], style: StyleConfig) -> None:
    """Draw one pool's rectangles, with edges where `extent` (milliseconds, bytes) is large enough; moves as lines."""
    colors = optimizer_colors(style)
    wide_ms, high_bytes = (_EDGED_SHARE * whole for whole in extent)
    for is_moving, color in ((False, colors["static"]), (True, colors["synchronous"])):
        shown = stays[stays["moves"] == is_moving]
        lasting = shown["end_us"] - shown["start_us"] > wide_ms * _US_PER_MS
        edges = [0.25 if edged else 0.0 for edged in lasting & (shown["size_bytes"] > high_bytes)]
        look = {"facecolor": color, "edgecolor": "white", "linewidth": edges, "alpha": 0.75}
        lefts, rights = shown["start_us"] / _US_PER_MS, shown["end_us"] / _US_PER_MS
        sides = zip(lefts, rights, shown["offset_bytes"], shown["size_bytes"], strict=True)
        corners = [
            [(left, low), (right, low), (right, low + size), (left, low + size)] for left, right, low, size in sides
        ]
        axes.add_collection(PolyCollection(corners, **look))
    for began, color in _moves(style).items():
        moved = stays[stays["began"] == began]
        ends = zip(moved["arrival_us"] / _US_PER_MS, moved["offset_bytes"], moved["size_bytes"], strict=True)
        lines = [[(at_ms, low), (at_ms, low + size)] for at_ms, low, size in ends]
        axes.add_collection(LineCollection(lines, colors=[color], linewidth=1.2))


def _moves(style: StyleConfig) -> dict[str, object]:
    return {"blocking": "black", "asynchronous": optimizer_colors(style)["numa"]}


def _caption(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    arrived = table[table["began"] != "born"]
    proven = "" if first["solver_status"] == "not_optimized" else f", {gap_text(first['gap'])}"
    return (
        f"{title(str(first['network']))} (batch {first['batch']}), scale {first['scale']}, {first['optimizer']}, "
        f"slow : fast memory {first['limit']}{proven}; {machine_text(first)}. Addresses are those of the program; "
        f"times are PREDICTED, sums of the kernels' times in the profile without those of moves. {len(table)} stays of "
        f"{table['tensor'].nunique()} tensors, {len(arrived)} moves of "
        f"{arrived['size_bytes'].sum() / 1e6:.4g} MB. Seed {first['seed']}. {first['versions']}."
    )
