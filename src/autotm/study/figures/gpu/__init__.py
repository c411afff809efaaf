"""Figures of training beyond a GPU's memory."""

from autotm.study.figures.gpu import fig12, timeline
from autotm.study.figures.gpu.table import table_of_engines, table_of_modelled_steps

__all__ = ["fig12", "table_of_engines", "table_of_modelled_steps", "timeline"]
