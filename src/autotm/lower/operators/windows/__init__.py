"""Operators over windows of an image."""

from autotm.lower.operators.windows import adaptive, pool, resize

__all__ = ["adaptive", "pool", "resize"]
