"""The commands that read records: `autotm records` and `autotm describe`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from autotm.cli_study import study_of
from autotm.model.errors import BadInputError
from autotm.study.setup import CONVENTIONAL

log = logging.getLogger("autotm")


def add_commands(commands: Any, study: argparse.ArgumentParser) -> None:
    """Add both to the parser's `commands`; `study` holds the options that all commands share."""
    text = "put the records of the study's workloads and figures into one table, a row a run"
    records = commands.add_parser("records", parents=[study], help=text, description=text)
    records.add_argument("--csv", type=Path, metavar="FILE", help="write the table there")
    records.add_argument("--parquet", type=Path, metavar="FILE", help="write the table there")
    records.set_defaults(command=_records)
    text = "tell the paper's headline numbers for the study at hand, beside the published ones"
    describe = commands.add_parser("describe", parents=[study], help=text, description=text)
    describe.add_argument("--workload", default=CONVENTIONAL, help="a workload of the study (%(default)s)")
    describe.set_defaults(command=_describe)


def _records(options: argparse.Namespace) -> None:
    from autotm.study.record_table import table_of_runs, write_runs  # noqa: PLC0415 - imports pandas: others need not wait

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
    from autotm.study.describe import describe  # noqa: PLC0415 - as above

    sys.stdout.write(describe(study_of(options), options.workload) + "\n")
