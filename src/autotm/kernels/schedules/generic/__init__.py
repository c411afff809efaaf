"""Schedules of everything else: elementwise maps and reductions."""

from autotm.kernels.schedules.generic.elementary import write_out
from autotm.kernels.schedules.generic.general import inline_intermediates, schedule_blocks, surround_scalars

__all__ = ["inline_intermediates", "schedule_blocks", "surround_scalars", "write_out"]
