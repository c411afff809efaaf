"""Device memory over pinned host memory: pools, streams and events of a GPU, or of threads that behave like one."""

from autotm.memory.gpu.cuda import CudaCode, CudaDevice, DeviceArray
from autotm.memory.gpu.facts import GpuFacts, GpuProcess, NoGpuError, gpu_facts
from autotm.memory.gpu.interface import Device, DeviceMemory, DeviceMemoryError, Event, Span, Stream
from autotm.memory.gpu.links import DEVICE_LINK_BYTES, device_links
from autotm.memory.gpu.opening import context_bytes, measured_context, open_device, open_gpu, open_managed, visible_gpu
from autotm.memory.gpu.requirements import PAPER_BYTES, GpuRefusedError, require_gpu, runs_on
from autotm.memory.gpu.threads import Delays, Interleaving, Order, RaceError, Starving, ThreadDevice

__all__ = [
    "DEVICE_LINK_BYTES",
    "PAPER_BYTES",
    "CudaCode",
    "CudaDevice",
    "Delays",
    "Device",
    "DeviceArray",
    "DeviceMemory",
    "DeviceMemoryError",
    "Event",
    "GpuFacts",
    "GpuProcess",
    "GpuRefusedError",
    "Interleaving",
    "NoGpuError",
    "Order",
    "RaceError",
    "Span",
    "Starving",
    "Stream",
    "ThreadDevice",
    "context_bytes",
    "device_links",
    "gpu_facts",
    "measured_context",
    "open_device",
    "open_gpu",
    "open_managed",
    "require_gpu",
    "runs_on",
    "visible_gpu",
]
