"""Records -> one tidy table, a row a run; what a figure's .csv holds and what it is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from autotm.model.errors import BadInputError
from autotm.model.files import load_with_provenance
from autotm.model.limit import Limit
from autotm.model.record import Record

_CAPTIONED_VERSIONS = ("autotm", "apache-tvm", "highspy", "pyomo", "python")


def table_of_records(paths: Iterable[Path]) -> pd.DataFrame:
    """One row for each record file, ordered by optimizer as given and then by limit, tightest first.

    Columns: what identifies the run, then bytes (`_bytes`), seconds (`_s`), and shares in [0, 1]. `slowdown` divides
    the median step by `all_fast_runtime_s`: the median all-fast step timed in turn with it, or, where there is none,
    the median step of the table's runs at limit 0:1. `predicted_slowdown` divides two predictions.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: no run in the table is all fast, or the runs are not of one study.
    """
    loaded = [load_with_provenance(path, "record", Record) for path in paths]
    table = pd.DataFrame([_row(record, provenance) for record, provenance in loaded])
    _require_one_study(table)
    records = [record for record, _ in loaded]
    table["all_fast_runtime_s"] = _all_fast_runtimes_s(records)
    table["slowdown"] = table["actual_runtime_median_s"] / table["all_fast_runtime_s"]
    table["predicted_slowdown"] = table["predicted_runtime_s"] / min(_all_fast(records, "predicted_runtime_s"))
    order = {name: place for place, name in enumerate(dict.fromkeys(table["optimizer"]))}
    return (
        table.assign(_order=table["optimizer"].map(order))
        .sort_values(["_order", "dram_limit_bytes"], kind="stable")
        .drop(columns="_order")
        .reset_index(drop=True)
    )


def _row(record: Record, provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "network": record.network,
        "scale": record.scale,
        "batch": record.batch,
        "machine": record.machine,
        "tier_reality": record.tier_reality,
        "threads": record.threads,
        "optimizer": record.optimizer,
        "limit": record.limit,
        "counts": record.counts,
        "dram_limit_bytes": record.dram_limit_bytes,
        "io_bytes": record.io_size,
        "peak_live_bytes": record.default_alloc_size,
        "dram_alloc_bytes": record.dram_alloc_size,
        "pmem_alloc_bytes": record.pmem_alloc_size,
        "predicted_runtime_s": record.predicted_runtime_s,
        "bound_s": record.bound_s,
        "gap": record.gap,
        "solver_status": record.solver_status,
        "optimization_s": sum(record.optimization_times),
        "actual_runtime_s": record.actual_runtime_s,
        "actual_runtime_median_s": record.actual_runtime_median_s,
        "samples": len(record.samples_s),
        "dram_input_fraction": _share(record.bytes_dram_input_tensors, record.bytes_input_tensors),
        "dram_output_fraction": _share(record.bytes_dram_output_tensors, record.bytes_output_tensors),
        "bytes_moved_dram": record.bytes_moved_dram,
        "bytes_moved_pmem": record.bytes_moved_pmem,
        "num_move_nodes": record.num_move_nodes,
        "verified_steps": record.verified_steps,
        "seed": record.seed,
        "cpu_model": provenance.get("cpu_model", ""),
        "versions": _versions(provenance),
    }


def _versions(provenance: Mapping[str, Any]) -> str:
    found = provenance.get("versions", {})
    named = [f"{package} {found[package]}" for package in _CAPTIONED_VERSIONS if package in found]
    commit = provenance.get("autotm_commit")
    return ", ".join([*named, f"commit {commit}"] if commit else named)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _require_one_study(table: pd.DataFrame) -> None:
    for column in ("network", "scale", "batch", "machine", "tier_reality"):
        values = sorted(table[column].astype(str).unique()) if column in table else []
        if len(values) != 1:
            raise BadInputError(f"records of one {column} make a case study; got {', '.join(values) or 'no record'}")


def _all_fast_runtimes_s(records: list[Record]) -> list[float]:
    """For each record the median of the all-fast steps to compare it with."""
    pooled = median(sample for samples in _all_fast(records, "samples_s") for sample in samples)
    return [median(record.all_fast_samples_s) if record.all_fast_samples_s else pooled for record in records]


def _all_fast(records: list[Record], field: str) -> list[Any]:
    """A field of every run without slow memory."""
    values = [getattr(record, field) for record in records if _is_all_fast(record.limit)]
    if not values:
        raise BadInputError('no all-fast run (limit "0:1") among the records: a slow-down has nothing to divide by')
    return values


def _is_all_fast(limit: str) -> bool:
    return Limit.parse(limit) == Limit(slow=0, fast=1)
