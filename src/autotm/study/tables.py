"""Records and plans as the tidy tables that figures are drawn from: a row a run, kept as `.csv`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from autotm.model.config import PricesConfig
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of, load, load_with_provenance, write_atomically
from autotm.model.graph import Graph
from autotm.model.limit import ALL_FAST, Counts, Limit, counting
from autotm.model.plan import Plan
from autotm.model.provenance import slow_memory_text
from autotm.model.record import Record

# Tables as .csv files that keep every digit.


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table; numbers keep every digit, so that a figure drawn from the file is the same figure."""
    write_atomically(path, lambda temporary: table.to_csv(temporary, index=False, lineterminator="\n"))


def read_table(path: Path) -> pd.DataFrame:
    """Read what `write_table` wrote, digit for digit."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


# Runs that others disturbed to the end: drawn hollow, named in captions, left out of sums.

DISTURBED = "disturbed"
"""Whether others held the cores in so many rounds of a run that these count: its times are too long."""


DISTURBED_BEFORE = "disturbed_before"
"""What a run's plan was made from that was measured while others held the cores, in words."""


DISTURBED_SEPARATOR = "; "


def marked(table: pd.DataFrame) -> pd.Series:
    """(rows,) whether each run is disturbed; none is in tables from before that was known, or of modelled steps."""
    if DISTURBED not in table:
        return pd.Series(data=False, index=table.index)
    return table[DISTURBED].astype(bool)


def at_limits(runs: pd.DataFrame, limits: Sequence[str]) -> list[bool]:
    """Whether the run at each limit is disturbed."""
    found = dict(zip(runs["limit"], marked(runs), strict=True))
    return [bool(found.get(limit, False)) for limit in limits]


# Records -> one tidy table, a row a run; what a figure's .csv holds and what it is drawn from.

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
        "limit": str(record.limit),
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
        DISTURBED: record.disturbed_steps_count,
        DISTURBED_BEFORE: DISTURBED_SEPARATOR.join(record.disturbed_before),
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
        all_fast = [record for record in records if record.limit == ALL_FAST]
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


# Plans of steps that no machine at hand could run -> a table like that of records, with predictions alone.


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
                "limit": str(plan.limit),
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


# What the memory of a run costs, over that of the same step with everything in fast memory.

BYTES_PER_GB = 1e9


def ratio_price(limit: Limit, prices: PricesConfig) -> float:
    """Price of the memory that a ratio slow:fast describes over that of as much fast memory; NaN for bytes."""
    if limit.slow is None or limit.fast is None:
        return math.nan
    parts = limit.slow * prices.slow_per_gb + limit.fast * prices.fast_per_gb
    return parts / ((limit.slow + limit.fast) * prices.fast_per_gb)


def with_prices(table: pd.DataFrame, prices: PricesConfig) -> pd.DataFrame:
    """The runs with what their memory costs.

    `ratio_price` is that of the limit's ratio. `pools_price` is that of the memory that the run took, parameters,
    inputs and results in fast memory included, and of the rest of the machine, over both of the all-fast step.
    `price_ratio` is how many times as much a byte of fast memory costs.
    """
    fast = (table["dram_alloc_bytes"] + table["uncounted_bytes"]) * prices.fast_per_gb / BYTES_PER_GB
    slow = table["pmem_alloc_bytes"] * prices.slow_per_gb / BYTES_PER_GB
    all_fast = (table["peak_live_bytes"] + table["uncounted_bytes"]) * prices.fast_per_gb / BYTES_PER_GB
    return table.assign(
        ratio_price=[ratio_price(Limit.parse(text), prices) for text in table["limit"]],
        pools_price=(fast + slow + prices.rest) / (all_fast + prices.rest),
        price_ratio=prices.fast_per_gb / prices.slow_per_gb,
    )
