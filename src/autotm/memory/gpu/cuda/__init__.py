"""A GPU through NVIDIA's `cuda-bindings`: its memory, pinned memory of its host, its streams and events."""

from autotm.memory.gpu.cuda.code import CudaCode
from autotm.memory.gpu.cuda.device import CudaDevice
from autotm.memory.gpu.cuda.dlpack import DeviceArray
from autotm.memory.gpu.cuda.runtime import Runtime, load_runtime, text_of

__all__ = ["CudaCode", "CudaDevice", "DeviceArray", "Runtime", "load_runtime", "text_of"]
