"""Figures of training beyond a GPU's memory."""

from autotm.study.figures.gpu import fig12, timeline
from autotm.study.figures.gpu.sources import table_of_lanes, table_of_steps

__all__ = ["fig12", "table_of_lanes", "table_of_steps", "timeline"]
