"""Operators that work on each value by itself."""

from autotm.lower.operators.pointwise import activations, elementwise

__all__ = ["activations", "elementwise"]
