"""Timing kernels: which, in which configurations and order, on what memory, and one kernel alone."""

from autotm.profile.timing.cases import cases, ways_of
from autotm.profile.timing.operands import MAX_COPIES, Filler
from autotm.profile.timing.options import ProfileOptions
from autotm.profile.timing.profiler import delay_ns, describe_context, origin, profile_kernels, timing_context
from autotm.profile.timing.progress import track
from autotm.profile.timing.timing import NORMAL_QUARTILES, Call, after_a_wait, paired, summary, time_interleaved

__all__ = [
    "MAX_COPIES",
    "NORMAL_QUARTILES",
    "Call",
    "Filler",
    "ProfileOptions",
    "after_a_wait",
    "cases",
    "delay_ns",
    "describe_context",
    "origin",
    "paired",
    "profile_kernels",
    "summary",
    "time_interleaved",
    "timing_context",
    "track",
    "ways_of",
]
