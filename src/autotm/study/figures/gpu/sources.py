"""What figure 12 is drawn from: steps that were modelled, or records of a GPU; never both in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from autotm.model.files import BadInputError
from autotm.model.study import FRAMEWORK_FILE
from autotm.study.figures.gpu.records import table_of_gpu_records, table_of_timelines
from autotm.study.figures.gpu.table import table_of_engines, table_of_modelled_steps

_RECORD = "record.json"


def table_of_steps(paths: Sequence[Path]) -> pd.DataFrame:
    """A row for each step, modelled or measured.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: some are modelled and some measured, of several machines, or without a baseline.
    """
    if not _are_measured(paths):
        return table_of_modelled_steps(paths)
    return table_of_gpu_records(
        [path for path in paths if path.name == _RECORD], [path for path in paths if path.name == FRAMEWORK_FILE]
    )


def table_of_lanes(paths: Sequence[Path]) -> pd.DataFrame:
    """A row for each thing that an engine did in a modelled step, or a stream in a measured one.

    Raises:
        as `table_of_steps`.
    """
    return table_of_timelines(paths) if _are_measured(paths) else table_of_engines(paths)


def _are_measured(paths: Sequence[Path]) -> bool:
    measured = {path.name in {_RECORD, FRAMEWORK_FILE}: path for path in paths}
    if len(measured) > 1:
        raise BadInputError(
            f"figure 12: {measured[False]} is modelled, {measured[True]} is measured: these do not compare; draw "
            "a figure of each"
        )
    return True in measured
