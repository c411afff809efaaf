"""Records of a GPU -> a row for each, or for each thing that its streams did; columns as of modelled steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from autotm.model.files import BadInputError, load, load_with_provenance
from autotm.model.measurement import Lane, Record, Timeline
from autotm.model.plan import Engine, Status
from autotm.study.figures.gpu.framework import LEFT_OUT, framework_row
from autotm.study.figures.gpu.table import with_speedups
from autotm.study.tables import COLUMN, require_one, versions_text

_ENGINES = {Lane.COMPUTE: Engine.COMPUTE, Lane.INWARD: Engine.IN, Lane.OUTWARD: Engine.OUT}


def table_of_gpu_records(paths: Iterable[Path], frameworks: Iterable[Path] = ()) -> pd.DataFrame:
    """One row for each record, in that order; of one that does not fit, what would have been measured is empty.

    Those of `frameworks`, whose own steps they are, come last.

    `oracle_s` is the least over the records of a network and batch: each kernel's fastest implementation, as profiled
    or, where that was faster, as it ran.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: as `table_of_modelled_steps`; or a record that names no GPU, or records of several.
    """
    rows = []
    for path in paths:
        record, source = load_with_provenance(path, "record", Record)
        searched = record.solver_status != Status.NOT_OPTIMIZED
        kernels_s = sum(record.kernel_times_us.values()) / 1e6 if record.fits else nan
        rows.append(
            {
                **_what(path, record, source),
                "counts": record.counts,
                "dram_limit_bytes": record.dram_limit_bytes,
                "io_bytes": record.io_size,
                "peak_live_bytes": record.default_alloc_size,
                "fits": record.fits,
                LEFT_OUT: "",
                "most_bytes": record.dram_alloc_size,
                "step_s": nan if record.actual_runtime_median_s is None else record.actual_runtime_median_s,
                "kernels_s": kernels_s * (1 - record.repeated_share),
                "repeated_s": kernels_s * record.repeated_share,
                "oracle_s": record.oracle_time_us / 1e6,
                "in_bytes": record.bytes_moved_dram + record.bytes_async_moved_dram,
                "out_bytes": record.bytes_moved_pmem + record.bytes_async_moved_pmem,
                "predicted_s": record.predicted_runtime_s,
                "bound_s": record.bound_s if searched else None,
                "gap": record.gap if searched else None,
                "solver_status": record.solver_status,
                "winograd_kernels": record.implementations.get("winograd", 0),
                "remark": "",
                "samples": len(record.samples_s),
                COLUMN: record.disturbed_steps_count,
                "verified_steps": record.verified_steps,
                "verified_against": record.verified_against,
                "seed": source["seed"],
                "versions": versions_text(source),
            }
        )
    require_one(pd.DataFrame(rows), "tier_reality")
    table = pd.DataFrame([*rows, *map(framework_row, frameworks)])
    require_one(table, "machine", "counts")
    # A CPU that plays the GPU is told by the caption.
    require_one(table[table["fits"].astype(bool) & (table["tier_reality"] != "stand-in")], "gpu")
    table["oracle_s"] = table.groupby(["network", "batch"])["oracle_s"].transform("min")
    return with_speedups(table)


def table_of_timelines(paths: Iterable[Path]) -> pd.DataFrame:
    """One row for each thing that a stream did, from the timeline beside each record; one row for what does not fit.

    Raises:
        as `table_of_gpu_records`; BadInputError, too, for records of several networks, batches or limits.
    """
    rows = []
    for path in paths:
        record, source = load_with_provenance(path, "record", Record)
        shared = _what(path, record, source)
        shared |= {"fits": record.fits, "seed": source["seed"], "versions": versions_text(source)}
        if not record.fits:
            rows.append({**shared, "engine": "", "name": "", "start_us": 0.0, "end_us": 0.0})
            continue
        timeline = load(path.with_name("timeline.json"), "timeline", Timeline)
        rows += [
            {
                **shared,
                "engine": str(_ENGINES[one.lane]),
                "name": one.name,
                "start_us": one.start_ns / 1e3,
                "end_us": one.end_ns / 1e3,
            }
            for one in timeline.operations
        ]
    table = pd.DataFrame(rows)
    require_one(table, "network", "batch", "scale", "machine", "limit", "tier_reality")
    return table


def _what(path: Path, record: Record, source: Mapping[str, Any]) -> dict[str, Any]:
    if "gpu" not in source:
        raise BadInputError(f"{path}: it names no GPU; figure 12 is of a machine of kind cuda, or of a modelled one")
    return {
        "network": record.network,
        "batch": record.batch,
        "scale": record.scale,
        "machine": source["machine"],
        "gpu": source["gpu"],
        "gpu_driver": source.get("gpu_driver", ""),
        "cpu_model": source["cpu_model"],
        "tier_reality": record.tier_reality,
        "optimizer": record.optimizer,
        "limit": record.limit,
    }
