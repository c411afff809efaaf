"""What tuning found: the schedule of a kernel that a search came to, and what it was worth beside our own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TunedSchedule:
    """A schedule that a search found for an unscheduled function, as `lower` needs it.

    Attributes:
        trace: the steps of the schedule as JSON, to be replayed on the function.
        own_identity: identity of our own schedule that it was measured against; beside another, its time says nothing.
    """

    trace: str
    own_identity: str


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """The outcome for one distinct kernel of a step.

    Attributes:
        op: name of the kernel's main block.
        shapes: shape of each operand, inputs first, as text.
        calls: how often a step calls it.
        own_us: time of our own schedule, measured in turn with the best found one on the same memory: minima or
            medians, whichever show less gain.
        tuned_us: of the best found schedule; None where the search found none that could be used.
        chosen: which of the two `lower` takes: `own` or `tuned`.
        trials: schedules that were tried.
    """

    op: str
    shapes: str
    calls: int
    own_us: float
    tuned_us: float | None
    chosen: str
    trials: int


@dataclass(frozen=True)
class TuningReport:
    """The outcome for every distinct kernel of a step that was asked for.

    Attributes:
        network, scale: whose step.
        kernels: heaviest first.
    """

    network: str
    scale: str
    kernels: tuple[TunedKernel, ...]
