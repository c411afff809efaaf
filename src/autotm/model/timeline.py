"""One step, operation by operation.

It is measured call by call, measured on a device's streams, or computed by a simulation of a GPU's engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Literal

from autotm.model.limit import Limit


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """An asynchronous copy in nanoseconds since its step began: handed to its engine, begun there, complete."""

    submitted_ns: int
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True)
class StepTrace:
    """A step of a program in which the clock was read between all calls.

    Attributes:
        marks_ns: for each step of the program when it began and when each of its calls ended, in nanoseconds since the
            first began. A kernel whose slow operands are emulated has two calls: itself, then the wait.
        copies: asynchronous copies by the number of their move.
        traced_s: seconds of every step that was measured so; the trace is of the one with the median.
        plain_s: seconds of the steps run in turn with those without reading the clock within.
        disturbed: whether others held the cores meanwhile, so that times are too long.
    """

    marks_ns: tuple[tuple[int, ...], ...]
    copies: Mapping[int, CopyTimes]
    traced_s: tuple[float, ...]
    plain_s: tuple[float, ...]
    disturbed: bool

    @property
    def overhead(self) -> float:
        """Share by which reading the clock made the median step longer; by noise it may be less than nothing."""
        return median(self.traced_s) / median(self.plain_s) - 1


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
    """One step on a device as its streams ran it, measured from event to event.

    Attributes:
        device: the model of the GPU.
        operations: in the order in which they were queued.
        step_ns: from the first event to the last.
    """

    device: str
    operations: tuple[TimedOperation, ...]
    step_ns: int

    def of(self, lane: Lane) -> tuple[TimedOperation, ...]:
        """Return the operations of one stream, in order."""
        return tuple(operation for operation in self.operations if operation.lane is lane)


class Engine(StrEnum):
    """A part of a GPU that works by itself: the kernels' stream, or the copy engine of one direction."""

    COMPUTE = "compute"
    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """A kernel or a copy that an engine ran.

    Attributes:
        engine: which.
        name: of a kernel, or of the tensor that was copied.
        start_us, end_us: from the beginning of the step.
    """

    engine: Engine
    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class ModelledStep:
    """A step on a modelled GPU. Every time in it is computed from published facts of the GPU.

    Attributes:
        network, scale, batch: what would run; `batch` is samples a step.
        machine: the model, as paths name it.
        gpu: which GPU that is, for people.
        tier_reality: `modelled`.
        optimizer: how its tensors are placed: an optimizer, or a rival.
        limit: of device memory for what is placed, as asked.
        counts: what the limit counts.
        dram_limit_bytes: the limit in bytes.
        io_size: bytes of parameters, inputs, constants and results, beside the limit unless it counts them.
        peak_live_bytes: of the step when nothing leaves the device.
        fits: whether it keeps the limit; the times of one that does not are those of a larger device.
        most_bytes: of what is placed, the most that is in device memory at once.
        step_us: from the first kernel to the end of the last.
        kernels_us: kernels of this step, each once.
        repeated_us: kernels that are run again to have their results again.
        oracle_us: the fastest implementation of every kernel, one after the other: no placement is faster.
        in_bytes, out_bytes: copied to the device and to the host.
        predicted_us: of a plan, its objective; None for rivals.
        bound_us: no plan of the optimizer is predicted to take less; None for rivals.
        gap: of the objective, the share not proven necessary; None for rivals.
        solver_status: how the search for the plan ended; empty for rivals.
        implementations: number of kernels by the name of the implementation.
        remark: what else a reader must know.
        events: what the engines did, in order of their start.
    """

    network: str
    scale: str
    batch: int
    machine: str
    gpu: str
    tier_reality: Literal["modelled"]
    optimizer: str
    limit: Limit
    counts: str
    dram_limit_bytes: int
    io_size: int
    peak_live_bytes: int
    fits: bool
    most_bytes: int
    step_us: float
    kernels_us: float
    repeated_us: float
    oracle_us: float
    in_bytes: int
    out_bytes: int
    predicted_us: float | None
    bound_us: float | None
    gap: float | None
    solver_status: str
    implementations: dict[str, int]
    remark: str
    events: tuple[EngineEvent, ...]
