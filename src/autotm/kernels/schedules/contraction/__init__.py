"""Schedules of convolutions and matrix products."""

from autotm.kernels.schedules.contraction.choice import schedule_contraction

__all__ = ["schedule_contraction"]
