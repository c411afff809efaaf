"""Schedules: how every operator is computed fast, and which one a kernel gets."""

from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule, schedule_as

__all__ = ["ScheduledKernel", "schedule", "schedule_as"]
