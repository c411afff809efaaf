"""What all contractions are made of: the problem as loops, packed panels, tiles in registers, sums of tiles."""

from autotm.kernels.schedules.contraction.parts.panels import Operand, RowMajor, Taps, Turned, copy_rows, turn_rows
from autotm.kernels.schedules.contraction.parts.prepare import Grid, Padding, copy, fill
from autotm.kernels.schedules.contraction.parts.problem import Output, Problem, problem_of
from autotm.kernels.schedules.contraction.parts.sums import (
    Block,
    each_block,
    each_portion,
    partial_sums,
    pick_features,
    pixel_blocks,
    portion_of,
    sum_block,
    sum_chains,
)
from autotm.kernels.schedules.contraction.parts.tile import RegisterTile

__all__ = [
    "Block",
    "Grid",
    "Operand",
    "Output",
    "Padding",
    "Problem",
    "RegisterTile",
    "RowMajor",
    "Taps",
    "Turned",
    "copy",
    "copy_rows",
    "each_block",
    "each_portion",
    "fill",
    "partial_sums",
    "pick_features",
    "pixel_blocks",
    "portion_of",
    "problem_of",
    "sum_block",
    "sum_chains",
    "turn_rows",
]
