"""Operators that work on each value by itself."""

from autotm.lower.operators.pointwise import activations, arithmetic, elementwise, silent

__all__ = ["activations", "arithmetic", "elementwise", "silent"]
