"""Schedules: how every operator is computed fast, and which one a kernel gets."""

from autotm.kernels.schedules.contraction import Problem, problem_of
from autotm.kernels.schedules.dispatch import CONTRACTIONS, ScheduledKernel, described, outline, schedule, schedule_as
from autotm.kernels.schedules.framework import FRAMEWORK, framework_kernel
from autotm.kernels.schedules.generic import inline_intermediates, surround_scalars

__all__ = [
    "CONTRACTIONS",
    "FRAMEWORK",
    "Problem",
    "ScheduledKernel",
    "described",
    "framework_kernel",
    "inline_intermediates",
    "outline",
    "problem_of",
    "schedule",
    "schedule_as",
    "surround_scalars",
]
