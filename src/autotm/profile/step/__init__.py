"""Timing kernels where they stand: within the step, beside the whole step that they have to sum up to."""

from autotm.profile.step.step_profile import profile_step
from autotm.profile.step.timing_runs import measure

__all__ = ["measure", "profile_step"]
