"""The report on a step's kernels as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from autotm.model.files import save
from autotm.study.kernel_report.report import KernelReport
from autotm.study.tables import write_table


def write_report_json(path: Path, report: KernelReport, provenance: Mapping[str, Any]) -> None:
    """Write all of it, with where it comes from."""
    save(path, "kernel_report", report, provenance)


def write_kernel_csv(path: Path, report: KernelReport, provenance: Mapping[str, Any]) -> None:
    """Write a row for each distinct kernel, most time first: what was profiled and where, then its fields.

    `above_limit_us` and `of_limit` are computed from the measured `time_us` and the `limit_us`.
    """
    where = {"network": report.network, "scale": report.scale, "tier": "fast"}
    where |= {key: provenance.get(key) for key in ("machine", "threads", "cpu_model", "autotm_commit")}
    rows = [
        {**where, **asdict(kernel), "above_limit_us": kernel.above_limit_us, "of_limit": kernel.of_limit}
        for kernel in report.kernels
    ]
    write_table(pd.DataFrame(rows), path)
