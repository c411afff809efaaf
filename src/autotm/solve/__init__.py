"""Placement: which tensor lives in which tier when, decided by integer programming and proven by prices."""

from autotm.solve.export import ProgramSize, export
from autotm.solve.options import SolveOptions
from autotm.solve.registry import optimizers, solve, sweep

__all__ = ["ProgramSize", "SolveOptions", "export", "optimizers", "solve", "sweep"]
