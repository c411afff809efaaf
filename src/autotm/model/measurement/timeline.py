"""One step on a device, as its streams ran it: kernels, copies in and copies out, each from event to event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Lane(StrEnum):
    """The streams of a device, by what they do."""

    COMPUTE = "compute"
    INWARD = "inward"
    OUTWARD = "outward"


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """A kernel or a copy.

    Attributes:
        lane: the stream that ran it.
        name: of the kernel, or of the tensor that is copied.
        size_bytes: that are copied; 0 for kernels.
        start_ns, end_ns: since the step began. A stream that waits for another does so before the start.
    """

    lane: Lane
    name: str
    size_bytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Timeline:
    """A measured step.

    Attributes:
        device: the model of the GPU; `threads` where threads played one, whose times say nothing about a GPU.
        operations: in the order in which they were queued.
        step_ns: from the first event to the last.
    """

    device: str
    operations: tuple[TimedOperation, ...]
    step_ns: int

    def of(self, lane: Lane) -> tuple[TimedOperation, ...]:
        """What one stream did, in order."""
        return tuple(operation for operation in self.operations if operation.lane is lane)

    def busy_ns(self, lane: Lane) -> int:
        """How long a stream worked."""
        return sum(operation.end_ns - operation.start_ns for operation in self.of(lane))

    def hidden_ns(self, lane: Lane) -> int:
        """How much of a copying stream's time had a kernel beside it."""
        return sum(_shared_ns(copy, kernel) for copy in self.of(lane) for kernel in self.of(Lane.COMPUTE))


def _shared_ns(one: TimedOperation, other: TimedOperation) -> int:
    return max(0, min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns))
