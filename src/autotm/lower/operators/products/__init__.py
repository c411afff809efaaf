"""Sums of products: convolutions and products of matrices."""

from autotm.lower.operators.products import conv, geometry, matmul

__all__ = ["conv", "geometry", "matmul"]
