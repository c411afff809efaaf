"""Where a step's time goes, kernel by kernel, against what the machine can do: computed, told, written."""

from autotm.study.kernel_report.files import write_kernel_csv, write_report_json
from autotm.study.kernel_report.report import Group, KernelReport, KernelTime, report_kernels
from autotm.study.kernel_report.text import report_text

__all__ = [
    "Group",
    "KernelReport",
    "KernelTime",
    "report_kernels",
    "report_text",
    "write_kernel_csv",
    "write_report_json",
]
