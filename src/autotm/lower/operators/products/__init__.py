"""Sums of products: convolutions and products of matrices."""

from autotm.lower.operators.products import conv, geometry, matmul
from autotm.lower.operators.products.folding import fold_transposes

__all__ = ["conv", "fold_transposes", "geometry", "matmul"]
