"""The records of a study: all fields as a table, which runs were verified, and the paper's headline numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import pandas as pd

from autotm.model.cache import CacheCounts, PageCounts
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import load_with_provenance, write_atomically
from autotm.model.limit import ALL_FAST, Limit
from autotm.model.record import Record
from autotm.study.setup import CACHED, FIRST_TOUCH, MOVER, Study
from autotm.study.tables import (
    DISTURBED_BEFORE,
    DISTURBED_SEPARATOR,
    fields_of,
    is_disturbed,
    is_end,
    limits_of,
    table_of_records,
    write_table,
)

_PROVENANCE = ("cpu_model", "autotm_commit", "started", "load_1min", "program_hash")


def table_of_runs(paths: Sequence[Path]) -> pd.DataFrame:
    """Return one row for each record file, in the order given.

    Columns are the record's fields that hold one value, with their units; of those that hold several: the sum of
    `creation_times` and `optimization_times`, `disturbed_before` as one text, the number of `samples_s` (`samples`),
    the median of `all_fast_samples_s` (`all_fast_runtime_median_s`), of `waited_s` and of `all_fast_waited_s`
    (`..._median_s`), `drift_s`, and all of `cache` and `pages` (`cache_...`, `pages_...`). Provenance follows.

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
    fields = dataclasses.asdict(record) | {"limit": str(record.limit)}
    cache = fields.pop("cache") or dict.fromkeys(field.name for field in dataclasses.fields(CacheCounts))
    pages = fields.pop("pages") or dict.fromkeys(field.name for field in dataclasses.fields(PageCounts))
    return {
        **{key: value for key, value in fields.items() if not isinstance(value, dict | tuple)},
        **{name: sum(fields[name]) for name in ("creation_times", "optimization_times")},
        DISTURBED_BEFORE: DISTURBED_SEPARATOR.join(record.disturbed_before),
        "samples": len(record.samples_s),
        **fields_of(record, "all_fast_runtime_median_s", "drift_s"),
        "waited_median_s": median(record.waited_s) if record.waited_s else None,
        "all_fast_waited_median_s": median(record.all_fast_waited_s) if record.all_fast_waited_s else None,
        **{f"cache_{name}": value for name, value in cache.items()},
        **{f"pages_{name}": value for name, value in pages.items()},
        **{name: provenance.get(name) for name in _PROVENANCE},
    }


_COLUMNS = [
    "network", "optimizer", "limit", "scale", "machine", "tier_reality", "counts", "verified_steps", "seed",
    "is_verified", "program_hash", "autotm_commit",
]  # fmt: skip


class UnverifiedError(AutotmError):
    """Programs ran without being compared with the plain step."""


def verify_records(records: Sequence[Path], csv: Path) -> pd.DataFrame:
    """Write a table with a row a program: how many steps were verified, and whether any (`is_verified`).

    A program whose results differ has no record: its run ends with an error. One that exceeds its limit did not run.

    Raises:
        UnverifiedError: after the table is written; names the programs of which no step was compared.
        DamagedFileError: a record cannot be read.
    """
    runs = table_of_runs(records)
    runs["is_verified"] = runs["verified_steps"] > 0
    table = runs[_COLUMNS]
    write_table(table, csv)
    wrong = runs[runs["fits"] & ~runs["is_verified"]]
    if len(wrong):
        names = ", ".join(f"{one.network} {one.optimizer} {one.limit}" for one in wrong.itertuples())
        raise UnverifiedError(
            f"{len(wrong)} of {len(table)} programs ran unverified: {names}; "
            "set run.verify_steps to 1 or more, then: snakemake --forcerun run verification"
        )
    return table


_NAMES = {MOVER: MOVER, FIRST_TOUCH: "first touch (numa)", CACHED: "memory mode (2LM)"}
"""The optimizers that headline numbers are about, as the text names them."""
_PUBLISHED = """\
published: synchronous loses 27.7 % (four networks) where 50 to 80 % of the fast memory is replaced (1:1 to 4:1);
           first touch loses 71.9 %; synchronous is 2 times as fast as memory mode (large ResNet-200)"""


class Headline(NamedTuple):
    """One number, and the networks whose geometric mean it is."""

    value: float
    networks: tuple[str, ...]


class AtLimit(NamedTuple):
    """The numbers of a study at one limit, as asked.

    Attributes:
        losses: by optimizer, 1 - geometric mean over networks of (all-fast time / time): the share of the all-fast
            step's speed that is lost.
        speed_ups: by optimizer, geometric mean of (its time / the synchronous time) over networks that have both.
    """

    limit: str
    losses: Mapping[str, Headline]
    speed_ups: Mapping[str, Headline]


def wanted_records(study: Study, workload: str) -> list[Path]:
    """Return the records that `describe` reads: three optimizers at the workload's limits, and its all-fast step.

    Raises:
        BadInputError: the study has no such workload, or its scale no sizes for one of its networks.
    """
    study.workload_records(workload)
    config = study.config.workloads[workload]
    return [
        paths.record(optimizer, limit)
        for paths in map(study.paths, config.networks)
        for limit in config.limits
        for optimizer in (_NAMES if not is_end(str(limit)) else [MOVER] if limit == ALL_FAST else [])
    ]


def describe(study: Study, workload: str) -> str:
    """Return a workload's headline numbers, the published ones, and how to make records that are missing.

    Raises:
        BadInputError: no such workload, or the records are not of one study.
        DamagedFileError: a record cannot be read.
    """
    wanted = wanted_records(study, workload)
    there = [path for path in wanted if path.exists()]
    lines = []
    if there:
        table = table_of_records(there, needs_all_fast=False)
        first = table.iloc[0]
        lines = [f"{workload}: {first['scale']} scale on {first['machine']}, {first['tier_reality']} slow memory;"]
        lines.append("medians of measured steps, geometric means over networks")
        lines += _lines(headlines(table[~is_disturbed(table)]))
        if count := int(is_disturbed(table).sum()):
            disturbed = f"{count} of {len(table)} runs, which others disturbed"
            lines.append(f"left out: {disturbed}; measure them again: autotm remeasure")
    lines.append(_PUBLISHED)
    if missing := [path for path in wanted if path not in there]:
        lines.append(f"missing: {len(missing)} of {len(wanted)} records; make them with:")
        lines.append(" \\\n  ".join([f"snakemake --cores {study.machine.threads}", *map(str, missing)]))
    return "\n".join(lines)


def headlines(table: pd.DataFrame) -> Iterator[AtLimit]:
    """Yield the numbers at each limit of a table of `table_of_records`, without all slow and all fast, most fast first.

    Its `slowdown` divides medians of steps that were timed in turn; a speed-up divides two slow-downs, or, where no
    all-fast step was timed, two medians.
    """
    for text in reversed(limits_of(table, ends=False)):
        runs = table[table["limit"] == text]
        times = {str(name): of.set_index("network") for name, of in runs.groupby("optimizer")}
        planned, losses, speed_ups = times.get(MOVER), {}, {}
        for name, of in times.items():
            if len(slowdowns := of["slowdown"].dropna()):
                losses[name] = Headline(1 - 1 / geometric_mean(slowdowns), tuple(slowdowns.index))
            if name == MOVER or planned is None:
                continue
            of_slowdowns, of_medians = (
                of[column] / planned[column] for column in ("slowdown", "actual_runtime_median_s")
            )
            if len(ratios := of_slowdowns.fillna(of_medians).reindex(of.index).dropna()):
                speed_ups[name] = Headline(geometric_mean(ratios), tuple(ratios.index))
        yield AtLimit(text, losses, speed_ups)


def _lines(limits: Iterator[AtLimit]) -> Iterator[str]:
    for one in limits:
        slow, fast = Limit.parse(one.limit).slow, Limit.parse(one.limit).fast
        yield one.limit + ("" if slow is None or fast is None else f", {slow / (slow + fast):.0%} slow")
        for name, loss in one.losses.items():
            yield f"  {_NAMES[name]} loses {100 * loss.value:.1f} % against all fast ({', '.join(loss.networks)})"
        for name, gain in one.speed_ups.items():
            yield f"  {MOVER} is {gain.value:.2f} times as fast as {_NAMES[name]} ({', '.join(gain.networks)})"
