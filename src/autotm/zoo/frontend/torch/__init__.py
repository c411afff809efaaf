"""PyTorch modules, as networks of ours."""

from autotm.zoo.frontend.torch.importer import Kernels
from autotm.zoo.frontend.torch.network import from_torch

__all__ = ["Kernels", "from_torch"]
