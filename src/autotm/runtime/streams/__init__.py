"""Programs on a device's streams: kernels in order, copies beside them, events where one must wait for another."""

from autotm.runtime.streams.arguments import DeviceArguments, device_bytes
from autotm.runtime.streams.executor import Call, Kernels, StreamExecutor, kernels_on, prepare_streams
from autotm.runtime.streams.gpu import plain_losses_on_gpu, profile_on_gpu, run_on_gpu
from autotm.runtime.streams.kernel_by_kernel import KernelByKernel, largest_kernel
from autotm.runtime.streams.launching import LaunchedKernels
from autotm.runtime.streams.operations import Bytes, Operation, operations
from autotm.runtime.streams.plain import too_large
from autotm.runtime.streams.reference import DeviceReference, device_reference
from autotm.runtime.streams.run import run_on_device
from autotm.runtime.streams.schedule import Schedule, schedule
from autotm.runtime.streams.timing import call_ns, operand_bytes, parts_of, profile_on

__all__ = [
    "Bytes",
    "Call",
    "DeviceArguments",
    "DeviceReference",
    "KernelByKernel",
    "Kernels",
    "LaunchedKernels",
    "Operation",
    "Schedule",
    "StreamExecutor",
    "call_ns",
    "device_bytes",
    "device_reference",
    "kernels_on",
    "largest_kernel",
    "operand_bytes",
    "operations",
    "parts_of",
    "plain_losses_on_gpu",
    "prepare_streams",
    "profile_on",
    "profile_on_gpu",
    "run_on_device",
    "run_on_gpu",
    "schedule",
    "too_large",
]
