"""PyTorch modules, as networks of ours."""

from autotm.zoo.frontend.torch.capture import Step, argument_of
from autotm.zoo.frontend.torch.importer import Kernels
from autotm.zoo.frontend.torch.network import from_torch

__all__ = ["Kernels", "Step", "argument_of", "from_torch"]
