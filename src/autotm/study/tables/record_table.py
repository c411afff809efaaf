"""Records as one tidy table: a row a run, a column each scalar field, under the record's own names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from autotm.model.files import BadInputError, load_with_provenance, write_atomically
from autotm.model.measurement import Record
from autotm.model.plan import CacheCounts, PageCounts
from autotm.study.tables.csv import write_table
from autotm.study.tables.disturbed import BEFORE, BEFORE_SEPARATOR

_PROVENANCE = ("cpu_model", "autotm_commit", "started", "load_1min", "program_hash")


def table_of_runs(paths: Sequence[Path]) -> pd.DataFrame:
    """One row for each record file, in the order given.

    Columns are the record's fields that hold one value, with their units; of those that hold several: the sum of
    `creation_times` and `optimization_times`, `disturbed_before` as one text, the number of `samples_s` (`samples`),
    the median of `all_fast_samples_s` (`all_fast_runtime_median_s`), of `waited_s` and of `all_fast_waited_s`
    (`..._median_s`), `drift_s`, and all of `cache` and `pages` (`cache_...`,
    `pages_...`). Then where the record comes from.

    Raises:
        DamagedFileError: a record cannot be read.
    """
    return pd.DataFrame([_row(*load_with_provenance(path, "record", Record)) for path in paths])


def write_runs(table: pd.DataFrame, path: Path) -> None:
    """Write the table as `.csv` or `.parquet`, as the path's name ends.

    Raises:
        BadInputError: it ends otherwise.
    """
    if path.suffix == ".csv":
        write_table(table, path)
    elif path.suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415 - who draws need not wait for it
        import pyarrow.parquet as pq  # noqa: PLC0415 - as above

        arrow = pa.Table.from_pandas(table, preserve_index=False)
        write_atomically(path, lambda temporary: pq.write_table(arrow, temporary))
    else:
        raise BadInputError(f"{path}: a table of records is a .csv or a .parquet file")


def _row(record: Record, provenance: Mapping[str, Any]) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    cache = fields.pop("cache") or dict.fromkeys(each.name for each in dataclasses.fields(CacheCounts))
    pages = fields.pop("pages") or dict.fromkeys(each.name for each in dataclasses.fields(PageCounts))
    times = {name: sum(fields.pop(name)) for name in ("creation_times", "optimization_times")}
    waits = {name: fields.pop(f"{name}_s") for name in ("waited", "all_fast_waited")}
    before = BEFORE_SEPARATOR.join(fields.pop(BEFORE))
    scalars = {name: value for name, value in fields.items() if not isinstance(value, dict | tuple)}
    return {
        **scalars,
        **times,
        BEFORE: before,
        "samples": len(record.samples_s),
        "all_fast_runtime_median_s": record.all_fast_runtime_median_s,
        "drift_s": record.drift_s,
        **{f"{name}_median_s": median(values) if values else None for name, values in waits.items()},
        **{f"cache_{name}": value for name, value in cache.items()},
        **{f"pages_{name}": value for name, value in pages.items()},
        **{name: provenance.get(name) for name in _PROVENANCE},
    }
