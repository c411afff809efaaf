"""Tables as .csv files that keep every digit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autotm.model.files import write_atomically


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table; numbers keep every digit, so that a figure drawn from the file is the same figure."""
    write_atomically(path, lambda temporary: table.to_csv(temporary, index=False, lineterminator="\n"))


def read_table(path: Path) -> pd.DataFrame:
    """Read what `write_table` wrote, digit for digit."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])
