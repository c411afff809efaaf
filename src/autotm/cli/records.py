"""The commands that read what jobs left: `autotm records`, `describe`, `remeasure` and `costs`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from autotm.cli.study import context_of, study_of
from autotm.model.files import BadInputError
from autotm.study.setup import CONVENTIONAL

log = logging.getLogger("autotm")


def add_commands(commands: Any, study: argparse.ArgumentParser) -> None:
    """Add them to the parser's `commands`; `study` holds the options that all commands share."""
    text = "put the records of the study's workloads and figures into one table, a row a run"
    records = commands.add_parser("records", parents=[study], help=text, description=text)
    records.add_argument("--csv", type=Path, metavar="FILE", help="write the table there")
    records.add_argument("--parquet", type=Path, metavar="FILE", help="write the table there")
    records.set_defaults(command=_records)
    text = "tell the paper's headline numbers for the study at hand, beside the published ones"
    describe = commands.add_parser("describe", parents=[study], help=text, description=text)
    describe.add_argument("--workload", default=CONVENTIONAL, help="a workload of the study (%(default)s)")
    describe.set_defaults(command=_describe)
    text = "run once more what others disturbed to the end; a record is replaced when its new one is there"
    remeasure = commands.add_parser("remeasure", parents=[study], help=text, description=text)
    remeasure.add_argument("--list", action="store_true", help="only tell which records those are")
    remeasure.set_defaults(command=_remeasure)
    text = "tell what each figure's jobs took, time and memory, as a table"
    costs = commands.add_parser("costs", parents=[study], help=text, description=text)
    costs.add_argument("--logs", type=Path, default=Path("logs"), help="where jobs left benchmarks (%(default)s)")
    costs.set_defaults(command=_costs)


def _records(options: argparse.Namespace) -> None:
    from autotm.study.tables import table_of_runs, write_runs  # noqa: PLC0415 - imports pandas: others need not wait

    wanted = study_of(options).configured_records()
    there = [path for path in wanted if path.exists()]
    if not there:
        raise BadInputError(
            f"none of the study's {len(wanted)} records is there; make the first: snakemake {wanted[0]}"
        )
    table = table_of_runs(there)
    files = [path for path in (options.csv, options.parquet) if path is not None]
    for path in files:
        write_runs(table, path)
    log.info("%d of the study's %d records are there", len(there), len(wanted))
    if not files:
        sys.stdout.write(table.to_csv(index=False))


def _describe(options: argparse.Namespace) -> None:
    from autotm.study.tables import describe  # noqa: PLC0415 - as above

    sys.stdout.write(describe(study_of(options), options.workload) + "\n")


def _remeasure(options: argparse.Namespace) -> None:
    from autotm.stages import disturbed_before, disturbed_records, remeasure  # noqa: PLC0415 - as above

    study = study_of(options)
    found = disturbed_records(study)
    if options.list:
        sys.stdout.write("".join(f"{path}\n" for path, _ in found))
    elif found:
        left = remeasure(study, context_of(study), found)
        log.info("%d of %d are sound now; snakemake draws their figures again", len(found) - left, len(found))
    else:
        log.info("no record of the study is marked as disturbed")
    if before := disturbed_before(study):
        names = " ".join(map(str, before))
        log.warning(
            "others held the cores, too, while what plans are made from was measured: %s. To measure it again, with "
            "what depends on it: rm %s, then snakemake as before",
            *(names, names),
        )


def _costs(options: argparse.Namespace) -> None:
    from autotm.study.tables import costs, table_of_costs  # noqa: PLC0415 - as above

    found = costs(study_of(options), options.logs)
    sys.stdout.write(table_of_costs(found) + "\n")
    if missing := found[-1].jobs - found[-1].known_jobs:
        log.warning(
            "%d jobs left no benchmark in %s: they ran elsewhere or before, or not at all", missing, options.logs
        )
