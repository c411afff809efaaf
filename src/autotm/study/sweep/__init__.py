"""What less and less fast memory costs one step: a table, an answer in words, a picture."""

from autotm.study.sweep.answers import answers
from autotm.study.sweep.result import SweepFiles, SweepResult
from autotm.study.sweep.table import SweepPoint, sweep_table

__all__ = ["SweepFiles", "SweepPoint", "SweepResult", "answers", "sweep_table"]
