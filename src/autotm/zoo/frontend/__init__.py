"""Networks from elsewhere: PyTorch modules, as networks of ours."""

from autotm.zoo.frontend.from_torch import from_torch

__all__ = ["from_torch"]
