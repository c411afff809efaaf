"""Records -> one tidy table, a row a run; what a figure's .csv holds and what it is drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from autotm.model.files import BadInputError, load_with_provenance
from autotm.model.machine import slow_memory_text
from autotm.model.measurement import Record
from autotm.model.step import Counts, Limit
from autotm.study.tables.disturbed import BEFORE, BEFORE_SEPARATOR, COLUMN

_IN_ORDER = ("network", "optimizer")
PAGES = "page_placement"
"""Column: `simulated` or `linux` where Linux's policies place pages; empty where a plan places tensors."""
_CAPTIONED_VERSIONS = ("autotm", "apache-tvm", "highspy", "pyomo", "python")


def table_of_records(paths: Iterable[Path], *, needs_all_fast: bool = True) -> pd.DataFrame:
    """One row for each record file, ordered by network and optimizer as given and then by limit, tightest first.

    Columns: what identifies the run, whether it was `disturbed` to the end, what was `disturbed_before`
    it that its plan was made from, then bytes (`_bytes`), seconds (`_s`), and
    shares in [0, 1]. `uncounted_bytes` are
    in fast memory whatever the limit: parameters, inputs and results, unless the limit counts them. `slowdown` divides
    the median step by `all_fast_runtime_s`: the median all-fast step timed in turn with it, or, where there is none,
    the median step of the network's runs at limit 0:1. `predicted_slowdown` adds to that same measured step what the
    placement costs by prediction: `predicted_runtime_s` less `all_fast_predicted_s`. For a wait for slow memory is as
    long as ever when the processor has become slower or faster since the kernels were timed. Without `needs_all_fast`,
    what has nothing to be divided by is empty.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: a network has no all-fast run although one is needed, or the runs are not of one study.
    """
    loaded = [load_with_provenance(path, "record", Record) for path in paths]
    table = pd.DataFrame([_row(record, provenance) for record, provenance in loaded])
    require_one(table, "scale", "machine", "counts")
    _require_one_reality(table)
    records = [record for record, _ in loaded]
    networks = list(dict.fromkeys(table["network"]))
    bases = {name: _Base.of([one for one in records if one.network == name]) for name in networks}
    table["all_fast_runtime_s"] = [bases[record.network].runtime_s(record) for record in records]
    table["all_fast_predicted_s"] = [bases[record.network].prediction_s(record) for record in records]
    missing = table.loc[table[["all_fast_runtime_s", "all_fast_predicted_s"]].isna().any(axis=1), "network"]
    if needs_all_fast and len(missing):
        network = missing.iloc[0]
        raise BadInputError(
            f'no all-fast run (limit "0:1") of {network} among the records: a slow-down has nothing to divide by'
        )
    table["slowdown"] = table["actual_runtime_median_s"] / table["all_fast_runtime_s"]
    predicted_cost_s = table["predicted_runtime_s"] - table["all_fast_predicted_s"]
    table["predicted_slowdown"] = 1 + predicted_cost_s / table["all_fast_runtime_s"]
    orders = {column: {name: i for i, name in enumerate(dict.fromkeys(table[column]))} for column in _IN_ORDER}
    return table.sort_values(
        [*_IN_ORDER, "dram_limit_bytes"],
        kind="stable",
        key=lambda column: column.map(orders[column.name]) if column.name in orders else column,
    ).reset_index(drop=True)


def require_one(table: pd.DataFrame, *columns: str) -> None:
    """Refuse a table whose runs do not share a value in each of `columns`.

    Raises:
        BadInputError: names column and values.
    """
    for column in columns:
        values = sorted(table[column].astype(str).unique()) if column in table else []
        if len(values) != 1:
            raise BadInputError(f"records of one {column} make a figure; got {', '.join(values) or 'no record'}")


def _require_one_reality(table: pd.DataFrame) -> None:
    """Refuse to compare what ran on real slow memory with what ran on emulated one.

    Raises:
        BadInputError: names the optimizers of each, and what to do.
    """
    found = {str(name): sorted(set(of["optimizer"])) for name, of in table.groupby("tier_reality")}
    if len(found) > 1:
        whose = "; ".join(f"{name}: {', '.join(optimizers)}" for name, optimizers in found.items())
        machine = table["machine"].iloc[0]
        raise BadInputError(
            f"records on different kinds of slow memory do not compare ({whose}). Where config/machines/{machine}.yaml "
            "says memory_mode: true, memory-mode ran behind the machine's own cache and all else on emulated memory: "
            "set it to false, so that the cache is modelled like the rest, or draw a workload of one kind"
        )


def _row(record: Record, provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "network": record.network,
        "scale": record.scale,
        "batch": record.batch,
        "machine": record.machine,
        "tier_reality": record.tier_reality,
        "slow_memory": slow_memory_text(provenance),
        "threads": record.threads,
        "optimizer": record.optimizer,
        "limit": record.limit,
        "counts": record.counts,
        "dram_limit_bytes": record.dram_limit_bytes,
        "io_bytes": record.io_size,
        "uncounted_bytes": 0 if record.counts == Counts.ALL else record.io_size,
        "peak_live_bytes": record.default_alloc_size,
        "dram_alloc_bytes": record.dram_alloc_size,
        "pmem_alloc_bytes": record.pmem_alloc_size,
        "predicted_runtime_s": record.predicted_runtime_s,
        "bound_s": record.bound_s,
        "gap": record.gap,
        "solver_status": record.solver_status,
        "creation_s": sum(record.creation_times),
        "optimization_s": sum(record.optimization_times),
        "actual_runtime_s": record.actual_runtime_s,
        "actual_runtime_median_s": record.actual_runtime_median_s,
        "samples": len(record.samples_s),
        COLUMN: record.disturbed_steps_count,
        BEFORE: BEFORE_SEPARATOR.join(record.disturbed_before),
        "dram_input_fraction": _share(record.bytes_dram_input_tensors, record.bytes_input_tensors),
        "dram_output_fraction": _share(record.bytes_dram_output_tensors, record.bytes_output_tensors),
        "bytes_moved_dram": record.bytes_moved_dram,
        "bytes_moved_pmem": record.bytes_moved_pmem,
        "num_move_nodes": record.num_move_nodes,
        PAGES: record.pages.placed_by if record.pages else "",
        **_parts(record),
        "verified_steps": record.verified_steps,
        "seed": record.seed,
        "cpu_model": provenance.get("cpu_model", ""),
        "versions": versions_text(provenance),
    }


def _parts(record: Record) -> dict[str, float]:
    """Where a step's time went, predicted and as timed piece by piece, and how long its threads had no core, seconds.

    What was not measured is empty: moves and waits in older records.
    """
    moves_us = record.move_actual_us
    return {
        "predicted_moves_s": record.move_time_us / 1e6,
        "kernels_s": (sum(record.kernel_times_us.values()) + record.stall_time_us) / 1e6,
        "moves_s": math.nan if moves_us is None else moves_us / 1e6,
        "waited_median_s": median(record.waited_s) if record.waited_s else math.nan,
        "all_fast_waited_median_s": median(record.all_fast_waited_s) if record.all_fast_waited_s else math.nan,
    }


def versions_text(provenance: Mapping[str, Any]) -> str:
    """The versions that a caption names, from the provenance of a file."""
    found = provenance.get("versions", {})
    named = [f"{package} {found[package]}" for package in _CAPTIONED_VERSIONS if package in found]
    commit = provenance.get("autotm_commit")
    return ", ".join([*named, f"commit {commit}"] if commit else named)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


@dataclass(frozen=True)
class _Base:
    """What the runs of one network are divided by where no all-fast step was timed beside them."""

    pooled_s: float = math.nan
    predicted_s: float = math.nan

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Base:
        all_fast = [record for record in records if Limit.parse(record.limit) == Limit(slow=0, fast=1)]
        if not all_fast:
            return cls()
        samples = [sample for record in all_fast for sample in record.samples_s]
        return cls(median(samples), min(record.predicted_runtime_s for record in all_fast))

    def runtime_s(self, record: Record) -> float:
        beside_s = record.all_fast_runtime_median_s
        return self.pooled_s if beside_s is None else beside_s

    def prediction_s(self, record: Record) -> float:
        # Files from before it was recorded have the step beside, but not what was predicted of it.
        if record.all_fast_samples_s and record.all_fast_predicted_s is not None:
            return record.all_fast_predicted_s
        return self.predicted_s
