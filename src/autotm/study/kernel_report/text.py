"""The report on a step's kernels as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from autotm.model.step import ScheduleKind
from autotm.study.kernel_report.report import UNKNOWN, Group, KernelReport, KernelTime
from autotm.study.tables import columns, shorten

_MS_FROM_US = 10_000.0


def report_text(report: KernelReport, where: str, worst: int = 10) -> str:
    """The groups as tables, the `worst` kernels, and what fell back; `where` names machine and threads."""
    parts = [
        _title(report, where),
        _rates(report),
        _group_table("op class", report.by_class, report),
        _group_table("operation", report.by_op, report),
        _group_table("schedule", report.by_schedule, report),
        _worst_table(report, worst),
        _fallen_back(report),
    ]
    if any(kernel.disturbed for kernel in report.kernels):
        parts.append("* others held the cores while this kernel was timed: its time is too long.")
    return "\n\n".join(part for part in parts if part)


def _title(report: KernelReport, where: str) -> str:
    calls = sum(kernel.calls for kernel in report.kernels)
    return (
        f"{report.network} ({report.scale}) on {where}: {calls} kernels, {len(report.kernels)} distinct, "
        f"{_time(report.time_us, report)} a step. MEASURED, all operands in fast memory."
    )


def _rates(report: KernelReport) -> str:
    rates = report.rates
    if rates is None:
        return (
            "What the machine can do at best is not known: links.json is from before it was measured. To measure it: "
            "autotm calibrate, then autotm profile."
        )
    return (
        f"The machine at its best, MEASURED: multiply-adds in registers {rates.flop_per_s / 1e9:.3g} GF/s, copies "
        f"{rates.copy_bytes_per_s / 1e9:.3g} GB/s (read and written). More than 100 %: operands were still in caches, "
        "or Winograd's form multiplied less than the plain one."
    )


def _group_table(what: str, groups: Sequence[Group], report: KernelReport) -> str:
    lines = [(what, "calls", "time", "share", "of multiply-adds", "of copies", "of best")]
    lines += [
        (
            group.name,
            str(group.calls),
            _time(group.time_us, report),
            f"{group.share:.1%}",
            *map(_percent, (group.of_multiply_adds, group.of_copies, group.of_best)),
        )
        for group in groups
    ]
    return columns(lines, left=1)


def _worst_table(report: KernelReport, count: int) -> str:
    found = report.worst(count)
    if not count:
        return ""
    if not found:
        return "No kernel takes longer than its best."
    is_known = report.rates is not None
    head = "Most time beyond what the machine needs" if is_known else "Most time"
    lines = [("kernel", "operation and shapes", "calls", "time", "share", "beyond best", "of best", "set by")]
    lines += [
        (
            kernel.name + ("*" if kernel.disturbed else ""),
            shorten(f"{kernel.op} {kernel.shapes}"),
            str(kernel.calls),
            _time(kernel.time_us, report),
            f"{kernel.share:.1%}",
            _time(kernel.beyond_best_us, report) if is_known else "-",
            _percent(kernel.of_best),
            kernel.set_by or "-",
        )
        for kernel in found
    ]
    return f"{head}:\n" + columns(lines, left=2)


def _fallen_back(report: KernelReport) -> str:
    if any(kernel.schedule == UNKNOWN for kernel in report.kernels):
        return "graph.json does not say where schedules come from; `autotm profile` writes one that does."
    found = report.as_written
    if not found:
        return "No kernel was compiled nearly as written."
    share = sum(kernel.share for kernel in found)
    lines = [_as_written_line(kernel, report) for kernel in found]
    return (
        f"WARNING: {len(found)} kernels had no schedule that works and were compiled nearly {ScheduleKind.AS_WRITTEN}; "
        f"they take {share:.1%} of the time:\n" + "\n".join(lines)
    )


def _as_written_line(kernel: KernelTime, report: KernelReport) -> str:
    what = shorten(f"{kernel.op} {kernel.shapes}")
    return f"  {kernel.name}: {what}, {_time(kernel.time_us, report)}, {kernel.share:.1%}"


def _time(time_us: float, report: KernelReport) -> str:
    """In one unit throughout a report."""
    return f"{time_us / 1e3:.2f} ms" if report.time_us >= _MS_FROM_US else f"{time_us:.1f} us"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
