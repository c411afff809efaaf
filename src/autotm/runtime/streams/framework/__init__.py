"""Steps of PyTorch's own on the device, beside programs: needs PyTorch."""

from autotm.runtime.streams.framework.device import NoFrameworkError, framework_device
from autotm.runtime.streams.framework.run import run_save_on_cpu

__all__ = ["NoFrameworkError", "framework_device", "run_save_on_cpu"]
