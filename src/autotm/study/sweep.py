"""What less and less fast memory costs one step: the plans of a sweep as one table, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotm.model.graph import Graph
from autotm.model.limit import fixed_bytes
from autotm.model.plan import Plan, Refusal, Status
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.provenance import slow_memory_text
from autotm.model.record import Record
from autotm.study.tables import DISTURBED, PAGES, versions_text

# How little fast memory a step needs, in words, from the table of a sweep.

ALLOWED = (0.01, 0.05, 0.1)
"""Slow-downs that are asked about, as shares of the all-fast step."""


def answers(table: pd.DataFrame) -> list[str]:
    """A sentence for each of `ALLOWED`: the least memory tried that is enough, and what is proven not to be."""
    kept = table[table["refused"] == ""]
    return [_answer(kept, allowed) for allowed in ALLOWED]


def _answer(kept: pd.DataFrame, allowed: float) -> str:
    slower = f"at most {allowed:.0%} slower than all fast".replace("%", " %")
    enough = kept[kept["predicted_slowdown"] <= 1 + allowed]
    short = _too_little(kept, allowed)
    if enough.empty:
        return f"With none of these limits the step is predicted to be {slower}{short}."
    least = enough.loc[enough["dram_limit_bytes"].idxmin()]
    measured = least["measured_slowdown"]
    told = "" if pd.isna(measured) else f" (measured: {measured - 1:+.1%})".replace("%", " %")
    return f"With {_memory(least)} the step is predicted to be {slower}{told}{short}."


def _too_little(kept: pd.DataFrame, allowed: float) -> str:
    """What the bounds rule out; nothing where the optimizer searches for no best plan, and has no bound."""
    proven = kept[(kept["bound_slowdown"] > 1 + allowed) & (kept["solver_status"] != str(Status.NOT_OPTIMIZED))]
    if proven.empty:
        return ""
    most = proven.loc[proven["dram_limit_bytes"].idxmax()]
    name = most["optimizer"]
    if not most["dram_limit_bytes"]:
        return f"; proven: with none at all, no {name} plan is"
    return f"; proven: with {_size(most)} or less, no {name} plan is"


def _memory(row: pd.Series) -> str:
    share = f"{100 * row['share_of_peak']:.3g} %"
    return f"{_size(row)} of fast memory ({share} of the step's peak)" if row["dram_limit_bytes"] else "no fast memory"


def _size(row: pd.Series) -> str:
    return f"{row['dram_limit_bytes'] / 1e6:.4g} MB"


# The plans of a sweep, and what running them measured, as one table.


@dataclass(frozen=True)
class SweepPoint:
    """A limit that was kept: its plan with addresses, and what running it measured, if it ran."""

    plan: Plan
    program: Program
    record: Record | None = None


def sweep_table(
    step: Graph,
    profile: Profile,
    optimizer: str,
    points: Iterable[SweepPoint],
    refused: Iterable[Refusal],
    source: Mapping[str, Any],
) -> pd.DataFrame:
    """One row for each limit, most fast memory first; those that no placement can keep come last.

    Columns: what was placed and where (`machine`, `threads`, `tier_reality`: whether slow memory was real, emulated,
    modelled or a stand-in; `slow_memory`: which, where not emulated); the limit as text, in bytes and as a share of
    the step's peak; pools and moved bytes (`_bytes`);
    predicted seconds (`_s`), over the predicted all-fast step (`predicted_slowdown`); the certified bound in the same
    two ways (`bound_s`, `bound_slowdown`: no plan of this optimizer is predicted to be faster); `gap` as a share;
    measured median seconds and slow-down over the all-fast step timed in turn, empty where nothing ran. Of a refused
    limit there are `refused`, why, and `smallest_bytes`.

    Args:
        step: as limits count it.
        profile: of its kernels.
        optimizer: that placed it.
        points: limits that were kept.
        refused: the other limits.
        source: provenance: machine, threads, versions.

    Raises:
        AutotmError: the profile lacks a kernel.
    """
    all_fast_s = sum(map(profile.base_us, step.computed_by(()).kernels)) / 1e6
    kept = list(points)
    shared = {
        "network": step.network,
        "scale": step.scale,
        "batch": step.batch,
        "optimizer": optimizer,
        **{key: source.get(key) for key in ("machine", "threads", "cpu_model", "seed")},
        "tier_reality": profile.provenance.get("tier_reality", source.get("tier_reality")),
        "slow_memory": slow_memory_text(profile.provenance) or slow_memory_text(source),
        PAGES: next((point.plan.paged.placed_by for point in kept if point.plan.paged), ""),
        "versions": versions_text(source),
        "peak_live_bytes": step.peak_live_bytes,
        "uncounted_bytes": fixed_bytes(step),
        "all_fast_predicted_s": all_fast_s,
    }
    all_fast_run_s = _all_fast_run_s(kept)
    rows = [shared | _kept_row(step, point, all_fast_s, all_fast_run_s) for point in kept]
    rows.sort(key=lambda row: -row["dram_limit_bytes"])
    rows += [shared | _refused_row(step, one) for one in refused]
    return pd.DataFrame(rows)


def kernels_word(table: pd.DataFrame) -> str:
    """Whether the kernel times behind a sweep were measured or modelled, in a word."""
    return "modelled" if table["tier_reality"].iloc[0] == "modelled" else "measured"


def _kept_row(step: Graph, point: SweepPoint, all_fast_s: float, all_fast_run_s: float) -> dict[str, Any]:
    plan, record = point.plan, point.record
    tensors = plan.step_of(step).by_name
    beside_s = math.nan
    if record is not None:
        beside_s = record.all_fast_runtime_median_s or all_fast_run_s
    median_s = record.actual_runtime_median_s if record else None
    measured_s = math.nan if median_s is None else median_s
    return {
        "limit": str(plan.limit),
        "dram_limit_bytes": plan.dram_limit_bytes,
        "share_of_peak": _share(plan.dram_limit_bytes, step),
        "dram_alloc_bytes": plan.one_pool.fast_bytes if plan.one_pool else point.program.fast_bytes,
        "pmem_alloc_bytes": point.program.slow_bytes - (plan.paged.fast_bytes if plan.paged else 0),
        "num_moves": len(plan.moves),
        "bytes_moved": sum(tensors[move.tensor].size_bytes for move in plan.moves),
        "predicted_runtime_s": plan.objective_us / 1e6,
        "predicted_slowdown": plan.objective_us / 1e6 / all_fast_s if all_fast_s else 1.0,
        "bound_s": plan.bound_us / 1e6,
        "bound_slowdown": plan.bound_us / 1e6 / all_fast_s if all_fast_s else 1.0,
        "gap": plan.gap,
        "solver_status": str(plan.status),
        "measured_runtime_s": measured_s,
        "measured_slowdown": measured_s / beside_s,
        DISTURBED: record is not None and record.disturbed_steps_count,
        "smallest_bytes": math.nan,
        "refused": "",
    }


def _refused_row(step: Graph, refusal: Refusal) -> dict[str, Any]:
    limit = refusal.limit
    size = math.nan if limit.less_io else limit.fast_bytes(step.peak_live_bytes)
    smallest = math.nan if refusal.smallest_bytes is None else refusal.smallest_bytes
    return {
        "limit": str(refusal.limit),
        "dram_limit_bytes": size,
        "share_of_peak": _share(size, step),
        "solver_status": "infeasible",
        DISTURBED: False,
        "smallest_bytes": smallest,
        "refused": refusal.why,
    }


def _share(size: float, step: Graph) -> float:
    return size / step.peak_live_bytes if step.peak_live_bytes else 1.0


def _all_fast_run_s(points: Sequence[SweepPoint]) -> float:
    """The run at a limit 0:n, for runs that no all-fast step was timed beside; NaN if there is none."""
    found = [
        point.record.actual_runtime_median_s
        for point in points
        if point.record is not None
        and point.record.actual_runtime_median_s is not None
        and point.plan.limit.is_unlimited
    ]
    return min(found, default=math.nan)
