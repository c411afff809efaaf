"""Devices of PyTorch: copies beside operators, pinned memory, clocks, and what allocators count."""

from autotm.api.offload.devices.choose import Device, device_of
from autotm.api.offload.devices.copies import Copies
from autotm.api.offload.devices.cpu import ThreadCopies
from autotm.api.offload.devices.links import measured_links
from autotm.api.offload.devices.timing import median_ns

__all__ = ["Copies", "Device", "ThreadCopies", "device_of", "measured_links", "median_ns"]
