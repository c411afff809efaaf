"""Placement: which tensor lives in which tier when, decided by integer programming and proven by prices."""

from autotm.solve.bounds import Potential, potential
from autotm.solve.export import ProgramSize, export
from autotm.solve.problem import Problem, SolveOptions
from autotm.solve.registry import optimizers, solve, sweep

__all__ = ["Potential", "Problem", "ProgramSize", "SolveOptions", "export", "optimizers", "potential", "solve", "sweep"]
