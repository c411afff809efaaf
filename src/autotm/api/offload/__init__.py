"""Training steps of PyTorch in less device memory: its kernels, with the plan's copies to host memory and back."""

from autotm.api.offload.entry import OffloadSummary, offload

__all__ = ["OffloadSummary", "offload"]
