"""The paper's headline numbers for a study's records, beside those published (Hildebrand et al., ASPLOS 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from autotm.model.limit import Limit
from autotm.study.records import table_of_records
from autotm.study.setup import Study

PLANNED, FIRST_TOUCH, CACHED = "synchronous", "numa", "memory-mode"
_CALLED = {PLANNED: PLANNED, FIRST_TOUCH: "first touch (numa)", CACHED: "memory mode (2LM)"}
_ALL_FAST = Limit(slow=0, fast=1)
_PUBLISHED = """\
published: synchronous loses 27.7 % (four networks) where 50 to 80 % of the fast memory is replaced (1:1 to 4:1);
           first touch loses 71.9 %; synchronous is 2 times as fast as memory mode (large ResNet-200)"""


@dataclass(frozen=True)
class Headline:
    """One number, and the networks whose geometric mean it is."""

    value: float
    networks: tuple[str, ...]


@dataclass(frozen=True)
class AtLimit:
    """What a study says at one limit.

    Attributes:
        limit: as asked.
        losses: by optimizer, 1 - geometric mean over networks of (all-fast time / time): the share of the all-fast
            step's speed that is lost.
        speed_ups: by optimizer, geometric mean of (its time / the synchronous time) over networks that have both.
    """

    limit: str
    losses: Mapping[str, Headline]
    speed_ups: Mapping[str, Headline]


def wanted_records(study: Study, workload: str) -> list[Path]:
    """The records that a description of a workload reads: three optimizers at its limits, and an all-fast step.

    Raises:
        BadInputError: the study has no such workload, or its scale no sizes for one of its networks.
    """
    study.workload_records(workload)
    config = study.config.workloads[workload]
    limits = [limit for limit in map(Limit.parse, config.limits) if not _is_end(limit)]
    return [
        path
        for paths in map(study.paths, config.networks)
        for path in (
            paths.record(PLANNED, _ALL_FAST),
            *(paths.record(optimizer, limit) for limit in limits for optimizer in _CALLED),
        )
    ]


def describe(study: Study, workload: str) -> str:
    """The headline numbers of a workload's records, the published ones, and how to make the records that are missing.

    Raises:
        BadInputError: no such workload, or the records are not of one study.
        DamagedFileError: a record cannot be read.
    """
    wanted = wanted_records(study, workload)
    bases = {path.parents[2] for path in wanted if path.parent.name == _ALL_FAST.slug and path.exists()}
    there = [path for path in wanted if path.exists() and path.parents[2] in bases]
    lines = []
    if there:
        table = table_of_records(there)
        first = table.iloc[0]
        lines = [f"{workload}: {first['scale']} scale on {first['machine']}, {first['tier_reality']} slow memory;"]
        lines += ["medians of measured steps, geometric means over networks", *_lines(headlines(table))]
    missing = [path for path in wanted if not path.exists()]
    lines.append(_PUBLISHED)
    if missing:
        lines.append(f"missing: {len(missing)} of {len(wanted)} records; make them with:")
        lines.append(" \\\n  ".join([f"snakemake --cores {study.machine.threads}", *map(str, missing)]))
    return "\n".join(lines)


def headlines(table: pd.DataFrame) -> Iterator[AtLimit]:
    """The numbers at each limit of a table of `table_of_records`, without all slow and all fast, most fast first.

    Its `slowdown` divides medians of steps that were timed in turn; a speed-up divides two slow-downs.
    """
    order = table.groupby("limit")["dram_limit_bytes"].median().sort_values(ascending=False, kind="stable").index
    for text in order:
        if _is_end(Limit.parse(text)):
            continue
        runs = table[table["limit"] == text]
        slowdowns = {
            optimizer: dict(zip(of["network"], of["slowdown"], strict=True))
            for optimizer, of in runs.groupby("optimizer")
        }
        losses = {name: Headline(1 - 1 / geometric_mean(of.values()), tuple(of)) for name, of in slowdowns.items()}
        yield AtLimit(text, losses, dict(_speed_ups(slowdowns)))


def _speed_ups(slowdowns: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, Headline]]:
    planned = slowdowns.get(PLANNED, {})
    for name, of in slowdowns.items():
        both = tuple(network for network in of if network in planned)
        if both and name != PLANNED:
            yield name, Headline(geometric_mean(of[network] / planned[network] for network in both), both)


def _lines(found: Iterator[AtLimit]) -> Iterator[str]:
    for one in found:
        limit = Limit.parse(one.limit)
        share = (
            "" if limit.slow is None or limit.fast is None else f", {limit.slow / (limit.slow + limit.fast):.0%} slow"
        )
        yield f"{one.limit}{share}"
        for name, loss in one.losses.items():
            yield f"  {_CALLED[name]} loses {100 * loss.value:.1f} % against all fast ({_named(loss.networks)})"
        for name, gain in one.speed_ups.items():
            yield f"  {PLANNED} is {gain.value:.2f} times as fast as {_CALLED[name]} ({_named(gain.networks)})"


def _named(networks: Sequence[str]) -> str:
    return ", ".join(networks)


def _is_end(limit: Limit) -> bool:
    return limit.size_bytes is None and 0 in {limit.slow, limit.fast}
