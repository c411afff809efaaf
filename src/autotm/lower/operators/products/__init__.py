"""Sums of products: convolutions and products of matrices."""

from autotm.lower.operators.products import conv, matmul

__all__ = ["conv", "matmul"]
