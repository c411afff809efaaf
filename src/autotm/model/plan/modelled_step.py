"""One step on a GPU as a simulation of its three engines has it (`modelled.json`): computed, never run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Engine(StrEnum):
    """What works by itself: the kernels' stream, and a copy engine for each direction."""

    COMPUTE = "compute"
    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """What an engine did for a while.

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
    limit: str
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
