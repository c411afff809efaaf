"""The commands `records`, `describe`, `remeasure` and `costs`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import click

from autotm import stages
from autotm.cli.command import Answer, answering
from autotm.cli.options import FILE, FOLDER, context_of, of_study
from autotm.model.errors import BadInputError
from autotm.study.costs import costs as costs_of
from autotm.study.costs import table_of_costs
from autotm.study.records import describe as describe_workload
from autotm.study.records import table_of_runs, write_runs
from autotm.study.setup import CONVENTIONAL, Study

log = logging.getLogger("autotm")


@click.command()
@of_study
@click.option("--csv", type=FILE, metavar="FILE", help="Write the table there.")
@click.option("--parquet", type=FILE, metavar="FILE", help="Write the table there.")
@answering
def records(study: Study, csv: Path | None, parquet: Path | None) -> Answer:
    """Of its workloads and figures; to standard output as CSV where no file is named."""
    wanted = study.configured_records()
    there = [path for path in wanted if path.exists()]
    if not there:
        raise BadInputError(
            f"none of the study's {len(wanted)} records is there; make the first: snakemake {wanted[0]}"
        )
    table = table_of_runs(there)
    files = [path for path in (csv, parquet) if path is not None]
    for path in files:
        write_runs(table, path)
    log.info("%d of the study's %d records are there", len(there), len(wanted))
    return Answer(table.to_dict("records"), "" if files else table.to_csv(index=False).removesuffix("\n"))


@click.command()
@of_study
@click.option("--workload", default=CONVENTIONAL, show_default=True, help="A workload of the study.")
@answering
def describe(study: Study, workload: str) -> Answer:
    """Beside the published numbers; and how to make the records that are missing."""
    told = describe_workload(study, workload)
    return Answer({"workload": workload, "lines": told.splitlines()}, told)


@click.command()
@of_study
@click.option("--list", "only_lists", is_flag=True, help="Only tell which records those are.")
@answering
def remeasure(study: Study, only_lists: bool) -> Answer:
    """A record is replaced when its new one is there."""
    found, before = stages.disturbed_records(study), stages.disturbed_before(study)
    paths, left = [marked.path for marked in found], len(found)
    if found and not only_lists:
        left = stages.remeasure(context_of(study), found)
        log.info("%d of %d are sound now; snakemake draws their figures again", len(found) - left, len(found))
    elif not found:
        log.info("no record of the study is marked as disturbed")
    if before:
        names = " ".join(map(str, before))
        log.warning(
            "others held the cores, too, while what plans are made from was measured: %s. To measure it again, with "
            "what depends on it: rm %s, then snakemake as before",
            *(names, names),
        )
    data = {"disturbed": paths, "still_disturbed": left, "measured_while_disturbed": before}
    return Answer(data, "\n".join(map(str, paths)) if only_lists else "")


@click.command()
@of_study
@click.option(
    "--logs", type=FOLDER, default=Path("logs"), show_default=True, metavar="FOLDER", help="Where jobs left benchmarks."
)
@answering
def costs(study: Study, logs: Path) -> Answer:
    """As a table, a row a figure; `figures` counts the jobs that figures share once."""
    found = costs_of(study, logs)
    if missing := found[-1].jobs - found[-1].known_jobs:
        log.warning("%d jobs left no benchmark in %s: they ran elsewhere or before, or not at all", missing, logs)
    return Answer([asdict(cost) for cost in found], table_of_costs(found))
