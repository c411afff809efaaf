"""What is asked and what there is to choose from: tensors' ways through the step, kernels' tables, what must fit."""

from autotm.solve.problem.allowance import Allowance
from autotm.solve.problem.choices import Choices, priced
from autotm.solve.problem.feasible import require_feasible, required_bytes
from autotm.solve.problem.flow import Flow, flags, flows_beside_kernels, flows_by_use, flows_for_life, flows_in
from autotm.solve.problem.options import SolveOptions
from autotm.solve.problem.packing import Addresses, Packing
from autotm.solve.problem.problem import Problem
from autotm.solve.problem.residency import (
    Residency,
    all_slow,
    by_blocking_moves,
    cost_us,
    fast_spans,
    occupy,
    stays_and_moves,
)
from autotm.solve.problem.shortest_path import Charges, Way, best_residency, best_value
from autotm.solve.problem.table import Floats, Ints, Table
from autotm.solve.problem.window import Clock, Span, Window

__all__ = [
    "Addresses",
    "Allowance",
    "Charges",
    "Choices",
    "Clock",
    "Floats",
    "Flow",
    "Ints",
    "Packing",
    "Problem",
    "Residency",
    "SolveOptions",
    "Span",
    "Table",
    "Way",
    "Window",
    "all_slow",
    "best_residency",
    "best_value",
    "by_blocking_moves",
    "cost_us",
    "fast_spans",
    "flags",
    "flows_beside_kernels",
    "flows_by_use",
    "flows_for_life",
    "flows_in",
    "occupy",
    "priced",
    "require_feasible",
    "required_bytes",
    "stays_and_moves",
]
