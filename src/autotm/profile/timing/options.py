"""What a user may set about profiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotm.model.machine import PATIENCE_S


@dataclass(frozen=True)
class ProfileOptions:
    """How kernels are timed.

    Attributes:
        configurations: `additive` times all-fast and each movable tensor alone slow (k+1), `full` all 2^k.
        min_repeats, max_repeats: timed runs of the step, or of each configuration of a kernel alone.
        step_s: seconds after which steps are done, if enough were run.
        kernel_s: seconds after which a kernel alone with enough repeats is done.
        spread: either is done earlier when the standard error of every median falls below this share of it.
        rotation_bytes: a kernel's operands rotate over copies that together fill this many bytes, so that a run finds
            in the caches no more than it would in the middle of a training step.
        times_known_waits: in emulated slow memory, time kernels with their waits too, though these are known; for
            judging ways of timing.
        patience_s: steps and kernels that were timed while others held the cores are timed again for so long in all, or
            three times as long as the others took.
        seed: seed of the operands' values.
    """

    configurations: Literal["additive", "full"] = "additive"
    min_repeats: int = 7
    max_repeats: int = 200
    step_s: float = 20.0
    kernel_s: float = 0.15
    spread: float = 0.003
    rotation_bytes: int = 128_000_000
    times_known_waits: bool = False
    patience_s: float = PATIENCE_S
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.min_repeats <= self.max_repeats:
            raise ValueError(f"profile: repeats must be 1 <= min <= max, got {self.min_repeats} and {self.max_repeats}")
