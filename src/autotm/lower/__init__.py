"""Network -> training step -> fused kernels -> graph and library."""

from autotm.lower.lower import lower_network

__all__ = ["lower_network"]
