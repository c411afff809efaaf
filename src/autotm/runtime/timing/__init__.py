"""How long a step takes: as a whole, kernel by kernel beside the all-fast one, and call by call."""

from autotm.runtime.timing.all_fast import AllFastRounds, Effort, time_all_fast
from autotm.runtime.timing.steps import StepParts, StepTimes, time_kernels, time_parts, time_steps
from autotm.runtime.timing.traced import trace_steps

__all__ = [
    "AllFastRounds",
    "Effort",
    "StepParts",
    "StepTimes",
    "time_all_fast",
    "time_kernels",
    "time_parts",
    "time_steps",
    "trace_steps",
]
