"""Devices of PyTorch: copies beside operators, pinned memory, clocks, and what allocators count."""

from autotm.memory.torch.device import Copies, Device, ThreadCopies, device_of, median_ns
from autotm.memory.torch.links import measured_links

__all__ = ["Copies", "Device", "ThreadCopies", "device_of", "measured_links", "median_ns"]
