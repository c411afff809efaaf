"""Schedules of everything else: elementwise maps and reductions."""

from autotm.kernels.schedules.generic.general import inline_intermediates, schedule_blocks

__all__ = ["inline_intermediates", "schedule_blocks"]
