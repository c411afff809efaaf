"""The time of each kernel of a step against the best that the machine could do: computed, as text, as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from autotm.model.graph import Graph, Kernel, OpClass, ScheduleKind, slow_traffic
from autotm.model.links import MachineRates
from autotm.model.profile import Profile
from autotm.study.columns import columns, shorten
from autotm.study.tables import write_table

# The time of each kernel of a step, its *best* time on the machine, and sums over groups of kernels.
#
# Times are the profile's: measured, all operands in fast memory, default implementations. A contraction needs its
# multiply-adds at the cores' best rate, every kernel its inputs read once and its outputs written once at the rate of
# copies; the longer of the two is the best time. Multiply-adds are those of the plain form, so Winograd's may take less
# than its best; so may a kernel whose operands are in caches.

CONTRACTIONS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}
UNKNOWN = "unknown"
"""The schedule kind of kernels in graph files from before it was kept."""


@dataclass(frozen=True)
class KernelTime:
    """One distinct kernel, all its calls in a step together.

    Attributes:
        name: of its first call.
        function: its symbol in the library.
        op: what it computes, by the name of its main block.
        op_class: what it does to memory.
        schedule: where its schedule comes from, a `ScheduleKind` or `unknown`.
        shapes: inputs, then outputs, e.g. `16x256,256x256->16x256`.
        calls: in a step.
        time_us: measured, a step.
        share: of the time of all kernels.
        flops: multiply-adds of a step, two each; 0 where it is no contraction.
        moved_bytes: inputs read once, outputs written once, a step.
        best_us: what the machine needs for that at best; None where its rates are not known.
        set_by: `multiply-adds` or `copies`, whichever its best comes from.
        disturbed: whether others held the cores while it was timed.
    """

    name: str
    function: str
    op: str
    op_class: OpClass
    schedule: str
    shapes: str
    calls: int
    time_us: float
    share: float
    flops: int
    moved_bytes: int
    best_us: float | None
    set_by: str
    disturbed: bool

    @property
    def beyond_best_us(self) -> float:
        """Time beyond the best; all of it where that is not known."""
        return self.time_us - (self.best_us or 0.0)

    @property
    def of_best(self) -> float | None:
        """Share of its time that the machine needs; above 1 where it is faster."""
        return None if self.best_us is None or not self.time_us else self.best_us / self.time_us


@dataclass(frozen=True)
class Group:
    """Kernels of one class, operation or schedule kind.

    Attributes:
        name: what they share.
        calls: in a step.
        time_us, share: as in `KernelTime`.
        of_multiply_adds: their multiply-adds over what the cores could do in their time; None without contractions.
        of_copies: bytes that they move over what copies could move in their time.
        of_best: the sum of their best over their time.
    """

    name: str
    calls: int
    time_us: float
    share: float
    of_multiply_adds: float | None
    of_copies: float | None
    of_best: float | None


@dataclass(frozen=True)
class KernelReport:
    """Where the time of one step goes.

    Attributes:
        network, scale: what was profiled.
        time_us: of all kernels one after the other, measured.
        rates: of the machine; None where they were not measured.
        kernels: distinct ones, most time first.
        by_class, by_op, by_schedule: the same in groups, most time first.
    """

    network: str
    scale: str
    time_us: float
    rates: MachineRates | None
    kernels: tuple[KernelTime, ...]
    by_class: tuple[Group, ...]
    by_op: tuple[Group, ...]
    by_schedule: tuple[Group, ...]

    def worst(self, count: int) -> list[KernelTime]:
        """Return the kernels that lose most time a step beyond their best, most first; none that is at its best."""
        kernels = sorted(self.kernels, key=lambda kernel: -kernel.beyond_best_us)
        return [kernel for kernel in kernels[:count] if kernel.beyond_best_us > 0]


def report_kernels(
    graph: Graph, profile: Profile, rates: MachineRates | None, schedules: Mapping[str, ScheduleKind]
) -> KernelReport:
    """Put the report together, of default implementations with all operands fast.

    `schedules` are by symbol of a kernel; those that lack are `unknown`.

    Raises:
        AutotmError: the profile lacks a kernel.
    """
    total_us = sum(map(profile.base_us, graph.kernels))
    same: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernel in graph.kernels:
        same[kernel.function].append(kernel)
    disturbed = {identity for (identity, _, _), timing in profile.timings.items() if timing.disturbed}
    kernel_times = []
    for function, calls in same.items():
        first, time_us = calls[0], sum(map(profile.base_us, calls))
        flops = sum(kernel.flops for kernel in calls) if first.op_class in CONTRACTIONS else 0
        moved = sum(moved_bytes(graph, kernel) for kernel in calls)
        best_us, set_by = None, ""
        if rates is not None:
            by_adds = (1e6 * flops / rates.flop_per_s, "multiply-adds")
            best_us, set_by = max((1e6 * moved / rates.copy_bytes_per_s, "copies"), by_adds, key=itemgetter(0))
        kernel_times.append(
            KernelTime(
                name=first.name,
                function=function,
                op=first.op,
                op_class=first.op_class,
                schedule=str(schedules.get(function, UNKNOWN)),
                shapes=shapes(first),
                calls=len(calls),
                time_us=time_us,
                share=time_us / total_us if total_us else 0.0,
                flops=flops,
                moved_bytes=moved,
                best_us=best_us,
                set_by=set_by,
                disturbed=first.identity in disturbed,
            )
        )
    kernels = tuple(sorted(kernel_times, key=lambda kernel: (-kernel.time_us, kernel.function)))
    groups = (_groups(kernels, field, rates) for field in ("op_class", "op", "schedule"))
    return KernelReport(graph.network, graph.scale, total_us, rates, kernels, *groups)


def moved_bytes(graph: Graph, kernel: Kernel) -> int:
    """Return the bytes that a kernel must read or write: inputs and outputs once; of a table the rows looked up."""
    # Workspaces may never leave the caches, so they do not count.
    counted = "P" * (len(kernel.inputs) + len(kernel.outputs)) + "D" * len(kernel.workspaces)
    read, written = slow_traffic(graph, kernel, counted)
    return sum(read) + sum(written)


def shapes(kernel: Kernel) -> str:
    """Return the shapes of inputs, then outputs, as text."""
    sides = (kernel.inputs, kernel.outputs)
    return "->".join(",".join("x".join(map(str, operand.shape)) or "1" for operand in side) for side in sides)


def _groups(kernels: Sequence[KernelTime], field: str, rates: MachineRates | None) -> tuple[Group, ...]:
    members: defaultdict[str, list[KernelTime]] = defaultdict(list)
    for kernel in kernels:
        members[str(getattr(kernel, field))].append(kernel)
    groups = []
    for name, of_group in members.items():
        names = ("calls", "time_us", "share", "flops", "moved_bytes")
        calls, time_us, share, flops, moved = (sum(getattr(one, key) for one in of_group) for key in names)
        adds = copies = best = None
        if rates is not None and time_us:
            adds = 1e6 * flops / rates.flop_per_s / time_us if flops else None
            copies = 1e6 * moved / rates.copy_bytes_per_s / time_us
            best = sum(kernel.best_us or 0.0 for kernel in of_group) / time_us
        groups.append(Group(name, calls, time_us, share, adds, copies, best))
    return tuple(sorted(groups, key=lambda group: (-group.time_us, group.name)))


_MS_FROM_US = 10_000.0
"""From this time of a step on, its report counts in milliseconds."""


def report_text(report: KernelReport, where: str, worst: int = 10) -> str:
    """Return the groups as tables, `worst` kernels, and those without a schedule; `where` names machine and threads."""
    calls = sum(kernel.calls for kernel in report.kernels)
    step = f"{calls} kernels, {len(report.kernels)} distinct, {_time(report.time_us, report)} a step"
    groups = {"op class": report.by_class, "operation": report.by_op, "schedule": report.by_schedule}
    parts = [
        f"{report.network} ({report.scale}) on {where}: {step}. MEASURED, all operands in fast memory.",
        _rates(report.rates),
        *(_group_table(heading, members, report) for heading, members in groups.items()),
        _worst_table(report, worst),
        _as_written(report),
    ]
    if any(kernel.disturbed for kernel in report.kernels):
        parts.append("* others held the cores while this kernel was timed: its time is too long.")
    return "\n\n".join(part for part in parts if part)


def _rates(rates: MachineRates | None) -> str:
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


def _group_table(heading: str, groups: Sequence[Group], report: KernelReport) -> str:
    lines = [(heading, "calls", "time", "share", "of multiply-adds", "of copies", "of best")]
    for group in groups:
        shares = map(_percent, (group.of_multiply_adds, group.of_copies, group.of_best))
        lines.append((group.name, str(group.calls), _time(group.time_us, report), f"{group.share:.1%}", *shares))
    return columns(lines, left=1)


def _worst_table(report: KernelReport, count: int) -> str:
    kernels = report.worst(count)
    if not count:
        return ""
    if not kernels:
        return "No kernel takes longer than its best."
    head = "Most time beyond what the machine needs" if report.rates else "Most time"
    lines = [("kernel", "operation and shapes", "calls", "time", "share", "beyond best", "of best", "set by")]
    lines += [
        (
            kernel.name + ("*" if kernel.disturbed else ""),
            shorten(f"{kernel.op} {kernel.shapes}"),
            str(kernel.calls),
            _time(kernel.time_us, report),
            f"{kernel.share:.1%}",
            _time(kernel.beyond_best_us, report) if report.rates else "-",
            _percent(kernel.of_best),
            kernel.set_by or "-",
        )
        for kernel in kernels
    ]
    return f"{head}:\n" + columns(lines, left=2)


def _as_written(report: KernelReport) -> str:
    if any(kernel.schedule == UNKNOWN for kernel in report.kernels):
        return "graph.json does not say where schedules come from; `autotm profile` writes one that does."
    unscheduled = [kernel for kernel in report.kernels if kernel.schedule == ScheduleKind.AS_WRITTEN]
    if not unscheduled:
        return "No kernel was compiled nearly as written."
    share = sum(kernel.share for kernel in unscheduled)
    how = f"had no schedule that works and were compiled nearly {ScheduleKind.AS_WRITTEN}"
    lines = [f"WARNING: {len(unscheduled)} kernels {how}; they take {share:.1%} of the time:"]
    for kernel in unscheduled:
        operation = shorten(f"{kernel.op} {kernel.shapes}")
        lines.append(f"  {kernel.name}: {operation}, {_time(kernel.time_us, report)}, {kernel.share:.1%}")
    return "\n".join(lines)


def _time(time_us: float, report: KernelReport) -> str:
    """Return a time in the unit of the report, which depends on the step's time."""
    return f"{time_us / 1e3:.2f} ms" if report.time_us >= _MS_FROM_US else f"{time_us:.1f} us"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


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
