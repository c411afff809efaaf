"""The plans of a sweep over limits on fast memory: as one table, and how little memory is enough in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
from autotm.study.tables import DISTURBED, PAGES, fields_of, versions_text

# How little fast memory a step needs, in words.

ALLOWED = (0.01, 0.05, 0.1)
"""Slow-downs that are asked about, as shares of the all-fast step."""


def answers(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each of `ALLOWED`: the least memory tried that is enough, and what is proven too little."""
    kept = table[table["refused"] == ""]
    return [_answer(kept, allowed) for allowed in ALLOWED]


def _answer(kept: pd.DataFrame, allowed: float) -> str:
    slower, too_little = f"at most {100 * allowed:.0f} % slower than all fast", ""
    # Only optimizers that search have a bound, which rules limits out.
    proven = kept[(kept["bound_slowdown"] > 1 + allowed) & (kept["solver_status"] != str(Status.NOT_OPTIMIZED))]
    if len(proven):
        most = proven.loc[proven["dram_limit_bytes"].idxmax()]
        size = f"{most['dram_limit_bytes'] / 1e6:.4g} MB or less" if most["dram_limit_bytes"] else "none at all"
        too_little = f"; proven: with {size}, no {most['optimizer']} plan is"
    enough = kept[kept["predicted_slowdown"] <= 1 + allowed]
    if enough.empty:
        return f"With none of these limits the step is predicted to be {slower}{too_little}."
    least = enough.loc[enough["dram_limit_bytes"].idxmin()]
    memory, measured = "no fast memory", ""
    if size_bytes := least["dram_limit_bytes"]:
        share = f"{100 * least['share_of_peak']:.3g} % of the step's peak"
        memory = f"{size_bytes / 1e6:.4g} MB of fast memory ({share})"
    if pd.notna(least["measured_slowdown"]):
        measured = f" (measured: {100 * (least['measured_slowdown'] - 1):+.1f} %)"
    return f"With {memory} the step is predicted to be {slower}{measured}{too_little}."


# The table: plans, and what running them measured.


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
    """Return one row for each limit, most fast memory first; those that no placement can keep come last.

    Columns: what was placed and where (`machine`, `threads`, `tier_reality`: whether slow memory was real, emulated,
    modelled or a stand-in; `slow_memory`: which, where not emulated); the limit as text, in bytes and as a share of
    the step's peak; pools and moved bytes (`_bytes`); predicted seconds (`_s`), over the predicted all-fast step
    (`predicted_slowdown`); the certified bound in the same two ways (`bound_s`, `bound_slowdown`: no plan of this
    optimizer is predicted to be faster); `gap` as a share; measured median seconds and slow-down over the all-fast
    step timed in turn, empty where nothing ran. Of a refused limit there are `refused`, why, and `smallest_bytes`.

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
        **fields_of(step, "network", "scale", "batch"),
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
    # The fastest run at a limit 0:n, for runs that no all-fast step was timed in turn with.
    runs = [point.record for point in kept if point.record and point.plan.limit.is_unlimited]
    medians = [record.actual_runtime_median_s for record in runs if record.actual_runtime_median_s is not None]
    all_fast_run_s = min(medians, default=math.nan)
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
    measured_s = all_fast_measured_s = math.nan
    if record is not None:
        all_fast_measured_s = record.all_fast_runtime_median_s or all_fast_run_s
        if record.actual_runtime_median_s is not None:
            measured_s = record.actual_runtime_median_s
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
        "measured_slowdown": measured_s / all_fast_measured_s,
        DISTURBED: record is not None and record.disturbed_steps_count,
        "smallest_bytes": math.nan,
        "refused": "",
    }


def _refused_row(step: Graph, refusal: Refusal) -> dict[str, Any]:
    limit = refusal.limit
    size = math.nan if limit.less_io else limit.fast_bytes(step.peak_live_bytes)
    return {
        "limit": str(refusal.limit),
        "dram_limit_bytes": size,
        "share_of_peak": _share(size, step),
        "solver_status": "infeasible",
        DISTURBED: False,
        "smallest_bytes": math.nan if refusal.smallest_bytes is None else refusal.smallest_bytes,
        "refused": refusal.why,
    }


def _share(size: float, step: Graph) -> float:
    return size / step.peak_live_bytes if step.peak_live_bytes else 1.0
