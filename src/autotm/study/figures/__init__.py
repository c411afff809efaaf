"""The figures, each drawn from its table alone."""

from autotm.study.figures.comparisons import table_of_devices
from autotm.study.figures.figures import FigureFiles, draw, make_figure, make_figure_of_records
from autotm.study.figures.gpu import table_of_lanes, table_of_steps
from autotm.study.figures.heap import table_of_heap
from autotm.study.figures.kernel_plot import table_of_convolution
from autotm.study.figures.links import table_of_links
from autotm.study.figures.timing_figure import make_timing_figure

__all__ = [
    "FigureFiles",
    "draw",
    "make_figure",
    "make_figure_of_records",
    "make_timing_figure",
    "table_of_convolution",
    "table_of_devices",
    "table_of_heap",
    "table_of_lanes",
    "table_of_links",
    "table_of_steps",
]
