"""Operators over windows of an image."""

from autotm.lower.operators.windows import pool

__all__ = ["pool"]
