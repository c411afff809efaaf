"""Operators that need sums along some axes: normalizations, softmax, statistics, biases."""

from autotm.lower.operators.norms import batch_norm, bias, groups, normalize, statistics

__all__ = ["batch_norm", "bias", "groups", "normalize", "statistics"]
