"""How long a step takes, once its pages are where they stay: as a whole, kernel by kernel, and call by call."""

from autotm.runtime.timing.all_fast import AllFastRounds, Effort, time_all_fast
from autotm.runtime.timing.linux_pages import LinuxPages, Settled, count_pages, fill_and_settle
from autotm.runtime.timing.steps import (
    Contender,
    StepParts,
    StepTimes,
    time_in_turn,
    time_kernels,
    time_parts,
    time_steps,
)
from autotm.runtime.timing.traced import trace_steps

__all__ = [
    "AllFastRounds",
    "Contender",
    "Effort",
    "LinuxPages",
    "Settled",
    "StepParts",
    "StepTimes",
    "count_pages",
    "fill_and_settle",
    "time_all_fast",
    "time_in_turn",
    "time_kernels",
    "time_parts",
    "time_steps",
    "trace_steps",
]
