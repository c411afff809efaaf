"""Schedules of everything else: elementwise maps and reductions."""

from autotm.kernels.schedules.generic.elementary import write_out
from autotm.kernels.schedules.generic.general import inline_intermediates, schedule_blocks

__all__ = ["inline_intermediates", "schedule_blocks", "write_out"]
