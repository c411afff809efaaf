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

    `beyond_best_us` and `of_best` are computed from the measured `time_us` and the `best_us`.
    """
    where = {"network": report.network, "scale": report.scale, "tier": "fast"}
    where |= {key: provenance.get(key) for key in ("machine", "threads", "cpu_model", "autotm_commit")}
    rows = [
        {**where, **asdict(kernel), "beyond_best_us": kernel.beyond_best_us, "of_best": kernel.of_best}
        for kernel in report.kernels
    ]
    write_table(pd.DataFrame(rows), path)
