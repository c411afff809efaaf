"""Device files: what a kind of slow memory costs, as fitted or as published; and the delays that play it."""

from autotm.memory.device.device_file import DeviceFile, KernelCost, MoveBandwidth
from autotm.memory.device.emulation import Emulation, measured_stretch, stretch_of
from autotm.memory.device.load import Device, load_device
from autotm.memory.device.published import PublishedDevice

__all__ = [
    "Device",
    "DeviceFile",
    "Emulation",
    "KernelCost",
    "MoveBandwidth",
    "PublishedDevice",
    "load_device",
    "measured_stretch",
    "stretch_of",
]
