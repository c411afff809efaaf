"""Networks of ours as modules of PyTorch that compute the same: a rival, a yardstick and a reference."""

from autotm.zoo.twin.module import TorchNetwork
from autotm.zoo.twin.update import has_sparse_gradients, optimizer_of, require_twin

__all__ = ["TorchNetwork", "has_sparse_gradients", "optimizer_of", "require_twin"]
