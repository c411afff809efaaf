"""The paper's headline numbers for a study's records, beside those published (Hildebrand et al., ASPLOS 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from autotm.model.step import Limit
from autotm.study.setup import CACHED, FIRST_TOUCH, MOVER, Study
from autotm.study.tables.disturbed import marked
from autotm.study.tables.records import table_of_records

_CALLED = {MOVER: MOVER, FIRST_TOUCH: "first touch (numa)", CACHED: "memory mode (2LM)"}
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
    """The records that a description of a workload reads: three optimizers at its limits, and its all-fast step.

    Raises:
        BadInputError: the study has no such workload, or its scale no sizes for one of its networks.
    """
    study.workload_records(workload)
    config = study.config.workloads[workload]
    limits = [Limit.parse(text) for text in config.limits]
    return [
        paths.record(optimizer, limit)
        for paths in map(study.paths, config.networks)
        for limit in limits
        for optimizer in (_CALLED if not _is_end(limit) else [MOVER] if limit == _ALL_FAST else [])
    ]


def describe(study: Study, workload: str) -> str:
    """The headline numbers of a workload's records, the published ones, and how to make the records that are missing.

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
        lines += ["medians of measured steps, geometric means over networks", *_lines(headlines(table[~marked(table)]))]
        lines += _left_out(table)
    missing = [path for path in wanted if not path.exists()]
    lines.append(_PUBLISHED)
    if missing:
        lines.append(f"missing: {len(missing)} of {len(wanted)} records; make them with:")
        lines.append(" \\\n  ".join([f"snakemake --cores {study.machine.threads}", *map(str, missing)]))
    return "\n".join(lines)


def _left_out(table: pd.DataFrame) -> Iterator[str]:
    """How many runs are not in the numbers, since others disturbed them, and what to do."""
    if count := int(marked(table).sum()):
        yield f"left out: {count} of {len(table)} runs, which others disturbed; measure them again: autotm remeasure"


def headlines(table: pd.DataFrame) -> Iterator[AtLimit]:
    """The numbers at each limit of a table of `table_of_records`, without all slow and all fast, most fast first.

    Its `slowdown` divides medians of steps that were timed in turn; a speed-up divides two slow-downs, or, where no
    all-fast step was timed, two medians.
    """
    order = table.groupby("limit")["dram_limit_bytes"].median().sort_values(ascending=False, kind="stable").index
    for text in order:
        if _is_end(Limit.parse(text)):
            continue
        runs = table[table["limit"] == text]
        times = {name: of.set_index("network") for name, of in runs.groupby("optimizer")}
        losses = {name: _loss(of["slowdown"].dropna()) for name, of in times.items()}
        planned = times.pop(MOVER, None)
        speed_ups = {name: _speed_up(of, planned) for name, of in times.items()} if planned is not None else {}
        yield AtLimit(text, *({name: one for name, one in of.items() if one.networks} for of in (losses, speed_ups)))


def _loss(slowdowns: pd.Series) -> Headline:
    return Headline(1 - 1 / geometric_mean(slowdowns) if len(slowdowns) else nan, tuple(slowdowns.index))


def _speed_up(of: pd.DataFrame, planned: pd.DataFrame) -> Headline:
    both = of.index.intersection(planned.index, sort=False)
    ratios = of["slowdown"].div(planned["slowdown"]).loc[both]
    medians = of["actual_runtime_median_s"].div(planned["actual_runtime_median_s"]).loc[both]
    return Headline(geometric_mean(ratios.fillna(medians)) if len(both) else nan, tuple(both))


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
            yield f"  {MOVER} is {gain.value:.2f} times as fast as {_CALLED[name]} ({_named(gain.networks)})"


def _named(networks: Sequence[str]) -> str:
    return ", ".join(networks)


def _is_end(limit: Limit) -> bool:
    return limit.size_bytes is None and 0 in {limit.slow, limit.fast}
