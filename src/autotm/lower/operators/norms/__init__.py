"""Operators that need sums along some axes: normalizations, softmax, biases."""

from autotm.lower.operators.norms import batch_norm, bias, normalize

__all__ = ["batch_norm", "bias", "normalize"]
