"""Placement: which tensor lives in which tier when, decided by integer programming and proven by prices."""

from autotm.solve.bases import plan_us
from autotm.solve.bounds import Potential, potential
from autotm.solve.export import ProgramSize, export
from autotm.solve.placing import fits, solve_and_pack, sweep_and_pack
from autotm.solve.problem import Problem, SolveOptions
from autotm.solve.registry import optimizers, solve, sweep

__all__ = [
    "Potential",
    "Problem",
    "ProgramSize",
    "SolveOptions",
    "export",
    "fits",
    "optimizers",
    "plan_us",
    "potential",
    "solve",
    "solve_and_pack",
    "sweep",
    "sweep_and_pack",
]
