"""A sweep over limits on fast memory: its table, how little memory is enough in words, text and picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph
from autotm.model.limit import fixed_bytes
from autotm.model.plan import Plan, Refusal, Status
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.provenance import slow_memory_text
from autotm.model.record import Record
from autotm.study.columns import columns
from autotm.study.tables import DISTURBED, PAGES, SLOWDOWNS_ASKED, fields_of, is_modelled, versions_text, write_table

T = TypeVar("T")


def _answer(rows: pd.DataFrame, allowed: float) -> str:
    """Say of limits that can be kept the least memory that is enough, and what is proven too little."""
    slower, too_little = f"at most {100 * allowed:.0f} % slower than all fast", ""
    # Only optimizers that search have a bound, which rules limits out.
    proven = rows[(rows["bound_slowdown"] > 1 + allowed) & (rows["solver_status"] != str(Status.NOT_OPTIMIZED))]
    if len(proven):
        most = proven.loc[proven["dram_limit_bytes"].idxmax()]
        size = f"{most['dram_limit_bytes'] / 1e6:.4g} MB or less" if most["dram_limit_bytes"] else "none at all"
        too_little = f"; proven: with {size}, no {most['optimizer']} plan is"
    enough = rows[rows["predicted_slowdown"] <= 1 + allowed]
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
    points: Sequence[SweepPoint],
    refused: Iterable[Refusal],
    source: Mapping[str, Any],
) -> pd.DataFrame:
    """Return one row for each limit of a step as limits count it, most fast memory first, refused limits last.

    Columns are described in `study/columns.py`; what was measured is empty where nothing ran. Of a refused limit there
    are `refused`, why, and `smallest_bytes`. `source` is provenance: machine, threads, versions.

    Raises:
        AutotmError: the profile lacks a kernel.
    """
    all_fast_s = sum(map(profile.base_us, step.computed_by(()).kernels)) / 1e6
    shared = {
        **fields_of(step, "network", "scale", "batch"),
        "optimizer": optimizer,
        **{key: source.get(key) for key in ("machine", "threads", "cpu_model", "seed")},
        "tier_reality": profile.provenance.get("tier_reality", source.get("tier_reality")),
        "slow_memory": slow_memory_text(profile.provenance) or slow_memory_text(source),
        PAGES: next((point.plan.paged.placed_by for point in points if point.plan.paged), ""),
        "versions": versions_text(source),
        "peak_live_bytes": step.peak_live_bytes,
        "uncounted_bytes": fixed_bytes(step),
        "all_fast_predicted_s": all_fast_s,
    }
    # The fastest run at a limit 0:n, for runs that no all-fast step was timed in turn with.
    runs = [point.record for point in points if point.record and point.plan.limit.is_unlimited]
    medians = [record.actual_runtime_median_s for record in runs if record.actual_runtime_median_s is not None]
    all_fast_run_s = min(medians, default=math.nan)
    rows = [shared | _row(step, point, all_fast_s, all_fast_run_s) for point in points]
    rows.sort(key=lambda row: -row["dram_limit_bytes"])
    for refusal in refused:
        limit = refusal.limit
        size = math.nan if limit.less_io else limit.fast_bytes(step.peak_live_bytes)
        own = {"limit": str(limit), "dram_limit_bytes": size, "share_of_peak": _share(size, step)}
        own |= {"solver_status": "infeasible", DISTURBED: False}
        smallest = math.nan if refusal.smallest_bytes is None else refusal.smallest_bytes
        rows.append(shared | own | {"smallest_bytes": smallest, "refused": refusal.why})
    return pd.DataFrame(rows)


def _row(step: Graph, point: SweepPoint, all_fast_s: float, all_fast_run_s: float) -> dict[str, Any]:
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


def _share(size: float, step: Graph) -> float:
    return size / step.peak_live_bytes if step.peak_live_bytes else 1.0


@dataclass(frozen=True)
class SweepResult(Generic[T]):
    """The cost of limits on fast memory for one step.

    Attributes:
        table: a row for each limit, as `sweep_table` describes it.
        placements: the placements at the limits that can be kept, in the order in which these were asked for; a result
            iterates over them.
    """

    table: pd.DataFrame
    placements: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.placements)

    def __len__(self) -> int:
        return len(self.placements)

    @property
    def answers(self) -> list[str]:
        """A sentence each on how little fast memory is enough for a step at most 1, 5 and 10 % slower."""
        can_be_kept = self.table[self.table["refused"] == ""]
        return [_answer(can_be_kept, allowed) for allowed in SLOWDOWNS_ASKED]

    def plot(self, path: str | Path, style: StyleConfig | None = None) -> None:
        """Draw slow-down against fast memory: `path` names a .pdf or a .png, and the other is written beside it.

        Raises:
            BadInputError: the name ends otherwise, or no limit could be kept.
        """
        path = Path(path)
        if path.suffix not in {".pdf", ".png"}:
            raise BadInputError(f"{path}: a picture is a .pdf or a .png file")
        if not self.placements:
            raise BadInputError(f"{path}: nothing to draw: no placement can keep any of these limits")
        # seaborn takes a second, and most sweeps are read, not drawn.
        from autotm.study.drawing import draw_to_files  # noqa: PLC0415
        from autotm.study.figures.limits import draw_sweep  # noqa: PLC0415

        draw_to_files(draw_sweep, self.table, path, style or StyleConfig())

    def write(self, folder: Path, style: StyleConfig) -> list[Path]:
        """Write `sweep.csv` and, where a limit could be kept, `sweep.pdf` and `.png`, each whole; return the paths."""
        csv, *pictures = (folder / f"sweep.{kind}" for kind in ("csv", "pdf", "png"))
        write_table(self.table, csv)
        if not self.placements:
            return [csv]
        self.plot(csv.with_suffix(".pdf"), style)
        return [csv, *pictures]

    def __str__(self) -> str:
        head = ("limit", "fast MB", "of peak", "slow MB", "predicted", "bound", "gap", "moved MB", "measured")
        parts = [_title(self.table), columns([head, *(_line(row) for _, row in self.table.iterrows())], left=1)]
        if self.table[DISTURBED].any():
            parts.append("* others held the cores meanwhile: too slow.")
        refused = self.table[self.table["refused"] != ""]
        parts += [f"{row['limit']}: {row['refused']}" for _, row in refused.iterrows()]
        return "\n".join([*parts, *(self.answers if self.placements else ())])


def _title(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    uncounted = f" (beside {_mb(first['uncounted_bytes'])} MB of arguments)" if first["uncounted_bytes"] else ""
    threads = f"{first['threads']} thread{'s' if first['threads'] != 1 else ''}"
    where = f"{first['machine']}, {threads}; slow memory {str(first['tier_reality']).upper()}"
    if first["slow_memory"]:
        where += f" ({first['slow_memory']})"
    kernels = "modelled" if is_modelled(table) else "measured"
    all_fast = f"{1e3 * first['all_fast_predicted_s']:.4g} ms PREDICTED from {kernels} kernels"
    if first[PAGES]:
        where += f"; pages {str(first[PAGES]).upper()}"
    return (
        f"{first['network']} ({first['scale']}), {first['optimizer']}, on {where}.\n"
        f"Peak {_mb(first['peak_live_bytes'])} MB{uncounted}. All-fast step: {all_fast}.\n"
        "`predicted`, `bound`: slow-downs over that step. `measured`: over the all-fast step timed in turn."
    )


def _line(row: pd.Series) -> Sequence[str]:
    """Return the words of a limit, in the order of the table's head."""
    fast, proof = ("?", "?"), ("-", "-")
    if pd.notna(row["dram_limit_bytes"]):
        fast = (_mb(row["dram_limit_bytes"]), f"{100 * row['share_of_peak']:.1f} %")
    if row["refused"]:
        return (row["limit"], *fast, "-", "impossible", "-", "-", "-", "-")
    if row["solver_status"] != Status.NOT_OPTIMIZED:  # an optimizer that does not search has neither bound nor gap
        proof = (f"{row['bound_slowdown']:.3f}", f"{100 * row['gap']:.2g} %")
    measured = "-"
    if pd.notna(row["measured_slowdown"]):
        measured = f"{row['measured_slowdown']:.3f}{'*' if row[DISTURBED] else ''}"
    slow, moved = _mb(row["pmem_alloc_bytes"]), _mb(row["bytes_moved"])
    return (row["limit"], *fast, slow, f"{row['predicted_slowdown']:.3f}", *proof, moved, measured)


def _mb(size: float) -> str:
    return f"{size / 1e6:.4g}"
