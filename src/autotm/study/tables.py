"""Records and plans as the tidy tables that figures are drawn from: a row a run, kept as `.csv`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table; numbers keep every digit, so that a figure drawn from the file is the same figure."""
    write_atomically(path, lambda temporary: table.to_csv(temporary, index=False, lineterminator="\n"))


def read_table(path: Path) -> pd.DataFrame:
    """Read what `write_table` wrote, digit for digit."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def fields_of(item: object, *names: str) -> dict[str, Any]:
    """Return the attributes of these names, as columns of the same names; a limit as text."""
    values = ((name, getattr(item, name)) for name in names)
    return {name: str(value) if isinstance(value, Limit) else value for name, value in values}


def is_end(text: str) -> bool:
    """Return whether a limit is all slow (n:0) or all fast (0:n)."""
    limit = Limit.parse(text)
    return 0 in {limit.slow, limit.fast}


def limits_of(table: pd.DataFrame, *, ends: bool) -> list[str]:
    """Return the limits of a table, least fast memory first; with `ends`, all slow and all fast too."""
    order = table.groupby("limit")["dram_limit_bytes"].median().sort_values(kind="stable").index
    return [text for text in order if ends or not is_end(text)]


DISTURBED = "disturbed"
"""Column: whether others held the cores in so many rounds of a run that these count; figures draw such runs hollow."""
DISTURBED_BEFORE = "disturbed_before"
"""Column: which measurements that a run's plan was made from were disturbed, in words."""
DISTURBED_SEPARATOR = "; "


def is_disturbed(table: pd.DataFrame) -> pd.Series:
    """Return whether each run is disturbed, (rows,); none is without such a column: modelled steps, old files."""
    if DISTURBED not in table:
        return pd.Series(data=False, index=table.index)
    return table[DISTURBED].astype(bool)


def disturbed_at(runs: pd.DataFrame, places: Sequence[str], by: str = "limit") -> list[bool]:
    """Return whether the run at each limit, or at each value of another column, is disturbed."""
    by_place = dict(zip(runs[by], is_disturbed(runs), strict=True))
    return [bool(by_place.get(place, False)) for place in places]


def is_modelled(table: pd.DataFrame) -> bool:
    """Return whether the steps of a table, or the kernels of a sweep's, were computed, and not run."""
    return bool(table["tier_reality"].iloc[0] == "modelled")


SLOWDOWNS_ASKED = (0.01, 0.05, 0.1)
"""Slow-downs, as shares of the all-fast step: a sweep prints how little memory keeps each; its picture marks them."""


PAGES = "page_placement"
"""Column: `simulated` or `linux` where Linux's policies place pages; empty where a plan places tensors."""
_VERSIONS_IN_CAPTIONS = ("autotm", "apache-tvm", "highspy", "pyomo", "python")


def table_of_records(paths: Iterable[Path], *, needs_all_fast: bool = True) -> pd.DataFrame:
    """Return one row for each record file, ordered by network and optimizer as given and then by limit, tightest first.

    Columns are described in `study/columns.py`. `uncounted_bytes` are in fast memory whatever the limit: parameters,
    inputs and results, unless the limit counts them. `slowdown` divides the median step by `all_fast_runtime_s`: the
    median all-fast step timed in turn with it, or, where there is none, the median step of the network's runs at limit
    0:1. `predicted_slowdown` adds to that measured step the predicted cost of the placement, `predicted_runtime_s` less
    `all_fast_predicted_s`: the processor may have become faster or slower since its kernels were timed, but a wait for
    slow memory has not. Without `needs_all_fast`, what has nothing to be divided by is empty.

    Raises:
        DamagedFileError: a record cannot be read.
        BadInputError: a network has no all-fast run although one is needed, or the runs are not of one study.
    """
    loaded = [load_with_provenance(path, "record", Record) for path in paths]
    records = [record for record, _ in loaded]
    table = pd.DataFrame([_row(record, provenance) for record, provenance in loaded])
    require_one(table, "scale", "machine", "counts")
    _require_one_reality(table)
    bases = {name: _all_fast_of(name, records) for name in dict.fromkeys(table["network"])}
    table["all_fast_runtime_s"] = [record.all_fast_runtime_median_s or bases[record.network][0] for record in records]
    # Old files have the all-fast step that was timed in turn, but not what was predicted of it.
    table["all_fast_predicted_s"] = [
        record.all_fast_predicted_s
        if record.all_fast_samples_s and record.all_fast_predicted_s is not None
        else bases[record.network][1]
        for record in records
    ]
    missing = table.loc[table[["all_fast_runtime_s", "all_fast_predicted_s"]].isna().any(axis=1), "network"]
    if needs_all_fast and len(missing):
        network = missing.iloc[0]
        raise BadInputError(
            f'no all-fast run (limit "0:1") of {network} among the records: a slow-down has nothing to divide by'
        )
    table["slowdown"] = table["actual_runtime_median_s"] / table["all_fast_runtime_s"]
    predicted_cost_s = table["predicted_runtime_s"] - table["all_fast_predicted_s"]
    table["predicted_slowdown"] = 1 + predicted_cost_s / table["all_fast_runtime_s"]
    # Names are sorted as they come first in the records, limits by bytes.
    return table.sort_values(
        ["network", "optimizer", "dram_limit_bytes"],
        kind="stable",
        ignore_index=True,
        key=lambda column: column if column.name == "dram_limit_bytes" else pd.Series(pd.factorize(column)[0]),
    )


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
    """Refuse to compare what ran on real slow memory with what ran on emulated one."""
    optimizers_of = {str(name): sorted(set(of["optimizer"])) for name, of in table.groupby("tier_reality")}
    if len(optimizers_of) > 1:
        whose = "; ".join(f"{name}: {', '.join(optimizers)}" for name, optimizers in optimizers_of.items())
        machine = table["machine"].iloc[0]
        raise BadInputError(
            f"records on different kinds of slow memory do not compare ({whose}). Where config/machines/{machine}.yaml "
            "says memory_mode: true, memory-mode ran behind the machine's own cache and all else on emulated memory: "
            "set it to false, so that the cache is modelled like the rest, or draw a workload of one kind"
        )


def _row(record: Record, provenance: Mapping[str, Any]) -> dict[str, Any]:
    moves_us = record.move_actual_us
    return {
        **fields_of(record, "network", "scale", "batch", "machine", "tier_reality"),
        "slow_memory": slow_memory_text(provenance),
        **fields_of(record, "threads", "optimizer", "limit", "counts", "dram_limit_bytes"),
        "io_bytes": record.io_size,
        "uncounted_bytes": 0 if record.counts == Counts.ALL else record.io_size,
        "peak_live_bytes": record.default_alloc_size,
        "dram_alloc_bytes": record.dram_alloc_size,
        "pmem_alloc_bytes": record.pmem_alloc_size,
        **fields_of(record, "predicted_runtime_s", "bound_s", "gap", "solver_status"),
        "creation_s": sum(record.creation_times),
        "optimization_s": sum(record.optimization_times),
        **fields_of(record, "actual_runtime_s", "actual_runtime_median_s"),
        "samples": len(record.samples_s),
        DISTURBED: record.disturbed_steps_count,
        DISTURBED_BEFORE: DISTURBED_SEPARATOR.join(record.disturbed_before),
        "dram_input_fraction": _share(record.bytes_dram_input_tensors, record.bytes_input_tensors),
        "dram_output_fraction": _share(record.bytes_dram_output_tensors, record.bytes_output_tensors),
        **fields_of(record, "bytes_moved_dram", "bytes_moved_pmem", "num_move_nodes"),
        PAGES: record.pages.placed_by if record.pages else "",
        "predicted_moves_s": record.move_time_us / 1e6,
        "kernels_s": (sum(record.kernel_times_us.values()) + record.stall_time_us) / 1e6,
        "moves_s": math.nan if moves_us is None else moves_us / 1e6,
        "waited_median_s": median(record.waited_s) if record.waited_s else math.nan,
        "all_fast_waited_median_s": median(record.all_fast_waited_s) if record.all_fast_waited_s else math.nan,
        **fields_of(record, "verified_steps", "seed"),
        "cpu_model": provenance.get("cpu_model", ""),
        "versions": versions_text(provenance),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _all_fast_of(network: str, records: Iterable[Record]) -> tuple[float, float]:
    """Return a network's median measured and predicted step at limit 0:1, seconds; NaN where no such run is there."""
    all_fast = [one for one in records if one.network == network and one.limit == ALL_FAST]
    if not all_fast:
        return math.nan, math.nan
    samples = [sample for record in all_fast for sample in record.samples_s]
    return median(samples), min(record.predicted_runtime_s for record in all_fast)


def versions_text(provenance: Mapping[str, Any]) -> str:
    """Return the versions that a caption names, from the provenance of a file."""
    versions = provenance.get("versions", {})
    named = [f"{package} {versions[package]}" for package in _VERSIONS_IN_CAPTIONS if package in versions]
    commit = provenance.get("autotm_commit")
    return ", ".join([*named, f"commit {commit}"] if commit else named)


def table_of_plans(plans: Iterable[Path], graphs: Iterable[Path]) -> pd.DataFrame:
    """Return a row for each plan file of a modelled step, in their order; `study/columns.py` describes the columns.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: a plan is of none of the graphs, a graph is not of a modelled step, or plans differ in scale.
    """
    steps = [load_with_provenance(path, "graph", Graph) for path in graphs]
    rows = []
    for path in plans:
        plan = load(path, "plan", Plan)
        of_plan = [item for item in steps if hash_of(counting(item[0], plan.counts)) == plan.graph_hash]
        if not of_plan:
            raise BadInputError(f"{path}: made for another graph than those given; rebuild it: snakemake {path}")
        step, source = of_plan[0]
        if "extrapolated" not in source:
            raise BadInputError(f"{path}: its step was not modelled; run it, and draw its record")
        rows.append(
            {
                **fields_of(step, "network", "batch", "scale"),
                **{key: source[key] for key in ("machine", "cpu_model", "threads", "tier_reality", "seed")},
                "slow_memory": slow_memory_text(source),
                **fields_of(plan, "optimizer", "limit", "counts", "dram_limit_bytes"),
                **fields_of(step, "peak_live_bytes"),
                "predicted_runtime_s": plan.objective_us / 1e6,
                "gap": plan.gap,
                "solver_status": str(plan.status),
                PAGES: plan.paged.placed_by if plan.paged else "",
                "batches": " ".join(map(str, source["extrapolated"]["batches"])),
                **{key: source["extrapolated"][key] for key in ("step_error", "kernel_error")},
                "versions": versions_text(source),
            }
        )
    table = pd.DataFrame(rows)
    require_one(table, "scale", "machine", "counts")
    return table


_BYTES_PER_GB = 1e9


def ratio_price(limit: Limit, prices: PricesConfig) -> float:
    """Return the price of memory of a ratio slow:fast over that of as much fast memory; NaN for bytes."""
    if limit.slow is None or limit.fast is None:
        return math.nan
    parts = limit.slow * prices.slow_per_gb + limit.fast * prices.fast_per_gb
    return parts / ((limit.slow + limit.fast) * prices.fast_per_gb)


def with_prices(table: pd.DataFrame, prices: PricesConfig) -> pd.DataFrame:
    """Return the runs with what their memory costs.

    `pools_price` is that of the memory that the run took, parameters, inputs and results in fast memory included, and
    of the rest of the machine, over both of the all-fast step.
    """
    fast = (table["dram_alloc_bytes"] + table["uncounted_bytes"]) * prices.fast_per_gb / _BYTES_PER_GB
    slow = table["pmem_alloc_bytes"] * prices.slow_per_gb / _BYTES_PER_GB
    all_fast = (table["peak_live_bytes"] + table["uncounted_bytes"]) * prices.fast_per_gb / _BYTES_PER_GB
    return table.assign(
        ratio_price=[ratio_price(Limit.parse(text), prices) for text in table["limit"]],
        pools_price=(fast + slow + prices.rest) / (all_fast + prices.rest),
        price_ratio=prices.fast_per_gb / prices.slow_per_gb,
    )
