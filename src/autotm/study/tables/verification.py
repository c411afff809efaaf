"""Which programs were shown to compute what the plain step computes, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from autotm.model.files import AutotmError
from autotm.study.tables.record_table import table_of_runs, write_runs

_COLUMNS = ("network", "optimizer", "limit", "scale", "machine", "tier_reality", "counts", "verified_steps", "seed")


class UnverifiedError(AutotmError):
    """Programs ran without being compared with the plain step."""


def verify_records(records: Sequence[Path], csv: Path) -> pd.DataFrame:
    """Write a table with a row a program and what was verified of it: `verified_steps` steps, `is_verified`.

    A program whose results differ has no record: its run ends with an error that names step and tensor. One that
    exceeds its limit did not run.

    Raises:
        UnverifiedError: after the table is written; names the programs of which no step was compared.
        DamagedFileError: a record cannot be read.
    """
    runs = table_of_runs(records)
    table = runs[[*_COLUMNS, *(name for name in ("program_hash", "autotm_commit") if name in runs)]].copy()
    table.insert(len(_COLUMNS), "is_verified", table["verified_steps"] > 0)
    write_runs(table, csv)
    wrong = table[~table["is_verified"] & runs["fits"]]
    if len(wrong):
        names = ", ".join(f"{one.network} {one.optimizer} {one.limit}" for one in wrong.itertuples())
        raise UnverifiedError(
            f"{len(wrong)} of {len(table)} programs ran unverified: {names}; "
            "set run.verify_steps to 1 or more, then: snakemake --forcerun run verification"
        )
    return table
