"""PyTorch modules, as networks of ours."""

from autotm.zoo.frontend.torch.capture import capture, is_own
from autotm.zoo.frontend.torch.importer import Kernels
from autotm.zoo.frontend.torch.network import from_torch

__all__ = ["Kernels", "capture", "from_torch", "is_own"]
