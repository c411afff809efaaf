"""Schedules of convolutions and matrix products."""

from autotm.kernels.schedules.contraction.choice import schedule_contraction
from autotm.kernels.schedules.contraction.parts import Problem, problem_of

__all__ = ["Problem", "problem_of", "schedule_contraction"]
