"""Sums judged by recorded kernels: what k + 1 configurations predict for the others, against what was recorded.

Tables are those of `docs/emulation.md`: one row for each kernel and configuration, with whole microseconds.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autotm.model.files import BadInputError

MIN_US = 100
"""Kernels that took less all fast are left out: times are whole microseconds, and small ones mostly noise."""
_COLUMNS = ("kernel_id", "op", "input_config", "output_config", "time_us")


def sums_of_recorded(path: Path) -> pd.DataFrame:
    """One row for each recorded configuration with at least two slow operands.

    Columns `kernel`, `op`, `configuration`, `slow_operands`, `single_us` (as recorded) and `time_us`: the recorded
    all-fast time plus what each slow operand alone added, be it less than nothing, as profiles add up.
    Configurations of kernels that lack a row which the sum needs are left out.

    Raises:
        BadInputError: no such file, or not such a table.
    """
    table = _read(path)
    table["configuration"] = table["input_config"].fillna("") + table["output_config"].fillna("")
    table["slow_operands"] = table["configuration"].str.count("P")
    rows = []
    for kernel, found in table.groupby("kernel_id", sort=True):
        times = dict(zip(found["configuration"], found["time_us"].astype(float), strict=True))
        base_us = times.get("D" * len(found["configuration"].iloc[0]))
        if base_us is None or base_us < MIN_US:
            continue
        extras = {config.index("P"): time_us - base_us for config, time_us in times.items() if config.count("P") == 1}
        for op, config, slow, time_us in found[["op", "configuration", "slow_operands", "time_us"]].itertuples(
            index=False
        ):
            slots = [slot for slot, letter in enumerate(config) if letter == "P"]
            if len(slots) > 1 and time_us > 0 and extras.keys() >= set(slots):
                rows.append((str(kernel), op, config, slow, float(time_us), base_us + sum(extras[s] for s in slots)))
    names = ["kernel", "op", "configuration", "slow_operands", "single_us", "time_us"]
    return pd.DataFrame(rows, columns=names)


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, keep_default_na=False, compression="infer")
    except FileNotFoundError:
        raise BadInputError(f"timing_study.recorded: {path}: no such table") from None
    except (ValueError, OSError, EOFError) as error:
        raise BadInputError(f"timing_study.recorded: {path}: not a table: {' '.join(str(error).split())}") from None
    if missing := [name for name in _COLUMNS if name not in table]:
        raise BadInputError(
            f"timing_study.recorded: {path}: lacks column {missing[0]}; the columns are those of docs/emulation.md"
        )
    return table
