"""What NVIDIA's management library says of the GPUs of a computer; it makes no context and takes no memory."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autotm.model.errors import AutotmError


class NoGpuError(AutotmError):
    """There is no GPU, or nothing that could tell of one."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Another process on a GPU.

    Attributes:
        pid: as the driver has it, which a container may number otherwise.
        used_bytes: of device memory; None where the driver does not tell.
    """

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU, as it is now.

    Attributes:
        name: of the model.
        uuid: of this one.
        bus_id: where it is, as CUDA names it too.
        driver: version of the driver.
        cuda: newest version of CUDA that the driver takes, major and minor.
        capability: compute capability, major and minor.
        total_bytes: of device memory.
        reserved_bytes: that the driver keeps for itself.
        used_bytes: that processes have taken.
        free_bytes: that could be taken.
        processes: that compute on it.
    """

    name: str
    uuid: str
    bus_id: str
    driver: str
    cuda: tuple[int, int]
    capability: tuple[int, int]
    total_bytes: int
    reserved_bytes: int
    used_bytes: int
    free_bytes: int
    processes: tuple[GpuProcess, ...]

    @property
    def architecture(self) -> str:
        """As compilers name it, `sm_90`."""
        return "sm_{}{}".format(*self.capability)


def load_nvml() -> Any:
    """The module `pynvml` of nvidia-ml-py.

    Raises:
        AutotmError: it is not installed.
    """
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise AutotmError(
            "facts of GPUs come through nvidia-ml-py, which is missing: pip install 'autotm[cuda]'"
        ) from None


def gpu_facts(nvml: Any = None) -> list[GpuFacts]:
    """All GPUs that the driver shows, in its order; CUDA_VISIBLE_DEVICES hides none of them here.

    Args:
        nvml: the module `pynvml`; None loads it.

    Raises:
        NoGpuError: no driver, one that does not answer, or no GPU.
        AutotmError: nvidia-ml-py is not installed.
    """
    module = load_nvml() if nvml is None else nvml
    with _opened(module):
        handles = [module.nvmlDeviceGetHandleByIndex(index) for index in range(module.nvmlDeviceGetCount())]
        found = [_facts(module, handle) for handle in handles]
    if not found:
        raise NoGpuError("the NVIDIA driver shows no GPU: look at nvidia-smi, and give a container its GPUs (--gpus)")
    return found


@contextmanager
def _opened(module: Any) -> Iterator[None]:
    try:
        module.nvmlInit()
    except module.NVMLError_LibraryNotFound:
        raise NoGpuError(
            "no NVIDIA driver: libnvidia-ml.so.1 is missing: install the driver (580 or later), or start the container "
            "with its GPUs (--gpus)"
        ) from None
    except module.NVMLError as error:
        raise NoGpuError(f"the NVIDIA driver does not answer ({error}): look at nvidia-smi, or restart") from None
    try:
        yield
    except module.NVMLError as error:
        raise NoGpuError(f"the NVIDIA driver does not tell of its GPUs ({error}): look at nvidia-smi") from None
    finally:
        module.nvmlShutdown()


def _facts(module: Any, handle: Any) -> GpuFacts:
    memory = _memory(module, handle)
    version = module.nvmlSystemGetCudaDriverVersion_v2()
    return GpuFacts(
        name=module.nvmlDeviceGetName(handle),
        uuid=module.nvmlDeviceGetUUID(handle),
        bus_id=module.nvmlDeviceGetPciInfo(handle).busId,
        driver=module.nvmlSystemGetDriverVersion(),
        cuda=(version // 1000, version % 1000 // 10),
        capability=tuple(module.nvmlDeviceGetCudaComputeCapability(handle)),
        total_bytes=memory.total,
        reserved_bytes=getattr(memory, "reserved", 0),
        used_bytes=memory.used,
        free_bytes=memory.free,
        processes=tuple(_processes(module, handle)),
    )


def _memory(module: Any, handle: Any) -> Any:
    try:
        return module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)
    except module.NVMLError:  # A driver before 510 knows the first version only; it is refused, but by its number.
        return module.nvmlDeviceGetMemoryInfo(handle)


def _processes(module: Any, handle: Any) -> Iterator[GpuProcess]:
    try:
        running = module.nvmlDeviceGetComputeRunningProcesses(handle)
    except module.NVMLError:  # Not told of some virtual GPUs, nor to everybody.
        return
    for process in running:
        yield GpuProcess(process.pid, process.usedGpuMemory)
