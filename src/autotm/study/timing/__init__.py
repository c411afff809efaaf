"""The timing study as a table: do quick ways of timing kernels agree with the slow one?"""

from autotm.study.timing.recorded_kernels import MIN_US
from autotm.study.timing.timing_study import MEASURED, RECORDED, summary, timing_table

__all__ = ["MEASURED", "MIN_US", "RECORDED", "summary", "timing_table"]
