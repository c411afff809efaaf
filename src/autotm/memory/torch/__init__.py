"""Devices of PyTorch: copies beside operators, pinned memory, clocks, and what allocators count."""

from autotm.memory.torch.choose import Device, device_of
from autotm.memory.torch.copies import Copies
from autotm.memory.torch.cpu import ThreadCopies
from autotm.memory.torch.links import measured_links
from autotm.memory.torch.timing import median_ns

__all__ = ["Copies", "Device", "ThreadCopies", "device_of", "measured_links", "median_ns"]
