"""Placement: which tensor lives in which tier when, decided by integer programming and proven by prices."""

from autotm.solve.options import SolveOptions
from autotm.solve.registry import optimizers, solve

__all__ = ["SolveOptions", "optimizers", "solve"]
