"""Plans of steps that no machine at hand could run -> a table like that of records, with predictions alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from autotm.model.files import BadInputError, hash_of, load, load_with_provenance
from autotm.model.machine import slow_memory_text
from autotm.model.plan import Plan
from autotm.model.step import Graph, counting
from autotm.study.tables.records import PAGES, require_one, versions_text


def table_of_plans(plans: Iterable[Path], graphs: Iterable[Path]) -> pd.DataFrame:
    """One row for each plan file, in that order, with the names of `table_of_records` where it has such columns.

    `predicted_runtime_s` is the plan's objective. `batches` are those that were profiled for the step, and `step_error`
    and `kernel_error` what predicting the largest of them from the others missed, as shares.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: a plan is of none of the graphs, a graph is not of a modelled step, or plans differ in scale.
    """
    steps = {path: load_with_provenance(path, "graph", Graph) for path in graphs}
    rows = []
    for path in plans:
        plan = load(path, "plan", Plan)
        found = [item for item in steps.values() if hash_of(counting(item[0], plan.counts)) == plan.graph_hash]
        if not found:
            raise BadInputError(f"{path}: made for another graph than those given; rebuild it: snakemake {path}")
        step, source = found[0]
        if "extrapolated" not in source:
            raise BadInputError(f"{path}: its step was not modelled; run it, and draw its record")
        rows.append(
            {
                "network": step.network,
                "batch": step.batch,
                "scale": step.scale,
                **{key: source[key] for key in ("machine", "cpu_model", "threads", "tier_reality", "seed")},
                "slow_memory": slow_memory_text(source),
                "optimizer": plan.optimizer,
                "limit": plan.limit,
                "counts": str(plan.counts),
                "dram_limit_bytes": plan.dram_limit_bytes,
                "peak_live_bytes": step.peak_live_bytes,
                "predicted_runtime_s": plan.objective_us / 1e6,
                "gap": plan.gap,
                "solver_status": str(plan.status),
                PAGES: plan.paged.placed_by if plan.paged else "",
                "batches": " ".join(map(str, source["extrapolated"]["batches"])),
                "step_error": source["extrapolated"]["step_error"],
                "kernel_error": source["extrapolated"]["kernel_error"],
                "versions": versions_text(source),
            }
        )
    table = pd.DataFrame(rows)
    require_one(table, "scale", "machine", "counts")
    return table


def is_modelled(table: pd.DataFrame) -> bool:
    """Whether the table is one of plans."""
    return "step_error" in table
