"""Which kernels of a step have a timing, a tuned schedule, or neither."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autotm.kernels.making import choose, identity
from autotm.lower import DistinctKernel, ScheduledStep, distinct_kernels
from autotm.model.machine import Machine
from autotm.model.measurement import Profile
from autotm.profile.store import KernelStore, Where
from autotm.profile.timing import timing_context

_WIDEST, _GAP = 75, " ... "


@dataclass(frozen=True, slots=True)
class Coverage:
    """What store and profile know of one distinct kernel on a machine.

    Attributes:
        op: name of the kernel's main block.
        shapes: shape of each operand, inputs first, as text.
        calls: how often a step calls it.
        flop_share: its part of the step's floating-point operations.
        is_timed: whether its code was timed, within the step or alone.
        is_tuned: whether a schedule was searched for and measured beside our own present one.
        is_taken: whether what was found replaces our own.
    """

    op: str
    shapes: str
    calls: int
    flop_share: float
    is_timed: bool
    is_tuned: bool
    is_taken: bool


def coverage(
    step: ScheduledStep, target: Any, machine: Machine, store: KernelStore, min_gain: float, profile: Profile | None
) -> tuple[Coverage, ...]:
    """Every distinct kernel of `step` (scheduled without tuned schedules), heaviest first; `profile` is its own."""
    kernels = distinct_kernels(step)
    place = Where.of(machine, target)
    tuned = store.schedules.elsewhere(place) | store.schedules.here(place)
    usable, timed = store.schedules.usable(place, min_gain), store.timed(timing_context(machine))
    if profile is not None:
        timed |= {identity for identity, _, _ in profile.timings}
    total = max(1, sum(item.flops for item in kernels))

    def row(item: DistinctKernel) -> Coverage:
        own = identity(item.scheduled.func, target)
        taken = choose(item.function, item.scheduled, usable.get(item.workload), target)
        entry = tuned.get(item.workload)
        return Coverage(
            op=item.scheduled.op,
            shapes=item.shapes,
            calls=item.calls,
            flop_share=item.flops / total,
            is_timed=identity(taken.func, target) in timed,
            is_tuned=entry is not None and entry.own_identity == own,
            is_taken=taken is not item.scheduled,
        )

    return tuple(row(item) for item in kernels)


def table(rows: Iterable[Coverage]) -> str:
    """The rows as text in columns."""
    lines = [("op", "shapes", "calls", "FLOPs", "timing", "tuned")]
    lines += [
        (
            row.op,
            shorten(row.shapes),
            str(row.calls),
            f"{row.flop_share:.1%}",
            "yes" if row.is_timed else "-",
            _outcome(row),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def shorten(text: str) -> str:
    """A text without its middle where it is too long for a line; fused kernels may have dozens of operands."""
    half = (_WIDEST - len(_GAP)) // 2
    return text if len(text) <= _WIDEST else text[:half] + _GAP + text[-half:]


def _outcome(row: Coverage) -> str:
    if row.is_taken:
        return "taken"
    return "own is faster" if row.is_tuned else "-"
