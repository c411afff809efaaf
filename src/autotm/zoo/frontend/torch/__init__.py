"""PyTorch modules, as networks of ours; for those who have PyTorch."""

from autotm.zoo.frontend.torch.from_torch import from_torch

__all__ = ["from_torch"]
