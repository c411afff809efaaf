"""What a user may set about a run."""

from __future__ import annotations

from dataclasses import dataclass

from autotm.model.machine import PATIENCE_S


@dataclass(frozen=True)
class RunOptions:
    """How a program is verified and timed.

    Attributes:
        min_steps: timed steps at least.
        min_seconds: the timed steps together last at least this long.
        precision: further steps are timed, for up to three times `min_seconds`, until the standard error of the
            slow-down (their median over that of the all-fast steps beside them) is at most this share of it.
        verify_steps: steps compared with the plain step; they come first and also warm up, and the last of several may
            be the first that is timed. 0 leaves verification out.
        instrumented_steps: steps in which every kernel is timed; their median is recorded. Without poison, those that
            only verify are the first of them.
        side_by_side: time the all-fast step in turn with the planned one; needs memory for both.
        poison: during verification, overwrite memory with NaN as soon as its tensor is dead.
        patience_s: steps during which others held the cores are repeated for so long in all, or three times as long as
            the good ones took.
        seed: seed of the arguments.
    """

    min_steps: int = 3
    min_seconds: float = 2.0
    precision: float = 0.015
    verify_steps: int = 2
    instrumented_steps: int = 1
    side_by_side: bool = True
    poison: bool = False
    patience_s: float = PATIENCE_S
    seed: int = 0

    def __post_init__(self) -> None:
        if self.precision <= 0:
            raise ValueError(f"run: precision must be > 0, got {self}")
        if self.min_steps < 1 or self.verify_steps < 0 or self.instrumented_steps < 1:
            raise ValueError(f"run: min_steps and instrumented_steps must be >= 1, verify_steps >= 0, got {self}")
