"""Modelled steps -> a row for each, or for each thing that an engine did."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from autotm.model.files import BadInputError, load_with_provenance
from autotm.model.plan import ModelledStep
from autotm.study.setup import GPU_BASELINE
from autotm.study.tables import require_one, versions_text

ORACLE = "oracle"


def table_of_modelled_steps(paths: Iterable[Path]) -> pd.DataFrame:
    """One row for each file, in that order; `speedup` is the baseline's step over this one.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: a network and batch without a step of the baseline, or steps of several machines.
    """
    rows = []
    for path in paths:
        step, source = load_with_provenance(path, "modelled_step", ModelledStep)
        rows.append(
            {
                **_what(step),
                "counts": step.counts,
                "dram_limit_bytes": step.dram_limit_bytes,
                "io_bytes": step.io_size,
                "peak_live_bytes": step.peak_live_bytes,
                "fits": step.fits,
                "most_bytes": step.most_bytes,
                "step_s": step.step_us / 1e6,
                "kernels_s": step.kernels_us / 1e6,
                "repeated_s": step.repeated_us / 1e6,
                "oracle_s": step.oracle_us / 1e6,
                "in_bytes": step.in_bytes,
                "out_bytes": step.out_bytes,
                "predicted_s": _seconds(step.predicted_us),
                "bound_s": _seconds(step.bound_us),
                "gap": step.gap,
                "solver_status": step.solver_status,
                "winograd_kernels": step.implementations.get("winograd", 0),
                "remark": step.remark,
                "seed": source["seed"],
                "versions": versions_text(source),
            }
        )
    table = pd.DataFrame(rows)
    require_one(table, "machine", "counts", "tier_reality")
    return with_speedups(table)


def with_speedups(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `speedup`: the baseline's `step_s` over each step's.

    Raises:
        BadInputError: a network and batch without a step of the baseline.
    """
    base = table[table["optimizer"] == GPU_BASELINE].set_index(["network", "batch"])["step_s"]
    own = list(zip(table["network"], table["batch"], strict=True))
    if missing := [f"{network} (batch {batch})" for network, batch in own if (network, batch) not in base.index]:
        raise BadInputError(f"figure 12: {missing[0]} has no step of '{GPU_BASELINE}' to be compared with")
    return table.assign(speedup=[base[place] for place in own] / table["step_s"])


def table_of_engines(paths: Iterable[Path]) -> pd.DataFrame:
    """One row for each thing that an engine did, step by step, as `EngineEvent` describes it.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: steps of several networks, batches or machines.
    """
    rows = []
    for path in paths:
        step, source = load_with_provenance(path, "modelled_step", ModelledStep)
        shared = {**_what(step), "fits": step.fits, "seed": source["seed"], "versions": versions_text(source)}
        rows += [
            {**shared, "engine": str(e.engine), "name": e.name, "start_us": e.start_us, "end_us": e.end_us}
            for e in step.events
        ]
    table = pd.DataFrame(rows)
    require_one(table, "network", "batch", "scale", "machine", "limit", "tier_reality")
    return table


def _what(step: ModelledStep) -> dict[str, Any]:
    return {
        "network": step.network,
        "batch": step.batch,
        "scale": step.scale,
        "machine": step.machine,
        "gpu": step.gpu,
        "tier_reality": step.tier_reality,
        "optimizer": step.optimizer,
        "limit": step.limit,
    }


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6
