"""The GPUs of a computer: what the driver says of them, whether one can be used, and opening it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import DeviceMemoryError, load_runtime, text_of
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import CudaTier, Machine

# What NVIDIA's management library says of the GPUs of a computer; it makes no context and takes no memory.


class NoGpuError(AutotmError):
    """There is no GPU, or nothing that could tell of one."""


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
        free_bytes: that could be taken.
        processes: device memory of each process that computes on it, by the driver's number of the process, which
            differs in a container; None where the driver does not tell.
    """

    name: str
    uuid: str
    bus_id: str
    driver: str
    cuda: tuple[int, int]
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    processes: Mapping[int, int | None]

    @property
    def architecture(self) -> str:
        """The GPU's architecture as compilers name it: `sm_90`."""
        return "sm_{}{}".format(*self.capability)


def gpu_facts() -> list[GpuFacts]:
    """Return all GPUs that the driver shows, in its order; CUDA_VISIBLE_DEVICES hides none of them here.

    Raises:
        NoGpuError: no driver, one that does not answer, or no GPU.
        AutotmError: nvidia-ml-py is not installed.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise AutotmError(
            "facts of GPUs come through nvidia-ml-py, which is missing: pip install 'autotm[cuda]'"
        ) from None
    with _opened_library(nvml):
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        gpus = [_facts(nvml, handle) for handle in handles]
    if not gpus:
        raise NoGpuError("the NVIDIA driver shows no GPU: look at nvidia-smi, and give a container its GPUs (--gpus)")
    return gpus


@contextmanager
def _opened_library(nvml: Any) -> Iterator[None]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        raise NoGpuError(
            "no NVIDIA driver: libnvidia-ml.so.1 is missing: install the driver (580 or later), or start the container "
            "with its GPUs (--gpus)"
        ) from None
    except nvml.NVMLError as error:
        raise NoGpuError(f"the NVIDIA driver does not answer ({error}): look at nvidia-smi, or restart") from None
    try:
        yield
    except nvml.NVMLError as error:
        raise NoGpuError(f"the NVIDIA driver does not tell of its GPUs ({error}): look at nvidia-smi") from None
    finally:
        nvml.nvmlShutdown()


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:  # A driver before 510 knows the first version only; it is refused, but by its number.
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    running = []
    with suppress(nvml.NVMLError):  # Not told of some virtual GPUs, nor to everybody.
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return GpuFacts(
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId,
        driver=nvml.nvmlSystemGetDriverVersion(),
        cuda=(version // 1000, version % 1000 // 10),
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        total_bytes=memory.total,
        free_bytes=memory.free,
        processes={process.pid: process.usedGpuMemory for process in running},
    )


# What must hold of a GPU before anything is allocated on it or runs there.

CUDA = (13, 0)
"""The version of CUDA that TVM's runtime and NVIDIA's bindings are built for."""
_FIRST_DRIVER = 580
_LEAST_CAPABILITY = (7, 5)
"""CUDA 13 compiles for no older one."""
PAPER_BYTES = 10_200_000_000
"""Device memory that the paper's plans for an RTX 2080 Ti may take: 11 GB, less 0.8 GB for its libraries."""


class GpuRefusedError(AutotmError):
    """A GPU cannot be used as it is."""


def require_gpu(
    facts: GpuFacts,
    needed_bytes: int,
    *,
    overhead_bytes: int = 0,
    built_for: Collection[str] = (),
    alone: bool = True,
) -> None:
    """Refuse a GPU that cannot run a program.

    Args:
        facts: as it is, before this process has a context on it.
        needed_bytes: device memory that the program asks for.
        overhead_bytes: that the context and its libraries take beside it.
        built_for: architectures of its kernels, such as `sm_80`, which runs on its major version from its minor one on
            (CUDA's programming guide, "Binary compatibility"); nothing where there are no kernels yet.
        alone: whether measured times are to mean something: no other process may use it.

    Raises:
        GpuRefusedError: says what is missing, and the remedy.
        DeviceMemoryError: likewise, where it is memory.
    """
    here = f"GPU {facts.name} ({facts.bus_id})"
    if facts.cuda < CUDA:
        raise GpuRefusedError(
            f"{here}: driver {facts.driver} takes CUDA up to {_dotted(facts.cuda)}, {_dotted(CUDA)} is needed: install "
            f"driver {_FIRST_DRIVER} or later"
        )
    if facts.capability < _LEAST_CAPABILITY:
        raise GpuRefusedError(
            f"{here}: compute capability {_dotted(facts.capability)}; CUDA {_dotted(CUDA)} has "
            f"{_dotted(_LEAST_CAPABILITY)} at least: take a GPU of 2018 or later"
        )
    major, minor = facts.capability
    if built_for and not any(f"sm_{major}{lower}" in built_for for lower in range(minor + 1)):
        raise GpuRefusedError(
            f"{here}: is {facts.architecture}, the kernels are built for {', '.join(sorted(built_for))}: lower the "
            f"network again for {facts.architecture}"
        )
    if alone and facts.processes:
        sizes = {
            pid: "memory not told" if used is None else f"{used / 1e9:.3f} GB" for pid, used in facts.processes.items()
        }
        pids = ", ".join(f"{pid} ({size})" for pid, size in sizes.items())
        raise GpuRefusedError(
            f"{here}: other processes compute on it: {pids}: times would be too long; end them (nvidia-smi), or wait"
        )
    if needed_bytes + overhead_bytes > facts.free_bytes:
        raise DeviceMemoryError(
            f"{here}: {needed_bytes / 1e9:.3f} GB are asked for and {overhead_bytes / 1e9:.3f} GB go to the context; "
            f"{facts.free_bytes / 1e9:.3f} of {facts.total_bytes / 1e9:.3f} GB are free: ask for a smaller limit or "
            "batch, or end what else uses it (nvidia-smi)"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


_BUS_ID_CHARACTERS = 32
_opened: set[str] = set()
"""GPUs that this process has a context on, until it ends."""
_before: dict[str, set[int]] = {}
"""Processes that were on a GPU when this one first looked, before it called CUDA; by GPU."""


def visible_gpu(index: int) -> GpuFacts:
    """Return the facts of the GPU with this CUDA number; its processes are those of others.

    CUDA's number is not the driver's: CUDA_VISIBLE_DEVICES chooses, and CUDA puts the fastest first. To ask CUDA for
    the place of a GPU may make a context of this process on it (seen with driver 580 on an H100).

    Raises:
        NoGpuError: there is no driver, or no such GPU.
        AutotmError: the driver is too old, or NVIDIA's packages are not installed.
    """
    gpus = gpu_facts()  # First: it tells best what is missing of a driver.
    place = _place(text_of(load_runtime().call("cudaDeviceGetPCIBusId", _BUS_ID_CHARACTERS, index)))
    for facts in gpus:
        if _place(facts.bus_id) == place:
            return _with_others(facts)
    raise NoGpuError(f"GPU {index} of CUDA, at {place}, is none of the driver's: look at nvidia-smi")


def _place(bus_id: str) -> str:
    """Return a bus address as CUDA writes it: the driver's domain has eight digits, CUDA's four."""
    return bus_id.lower()[-len("0000:00:00.0") :]


def _with_others(facts: GpuFacts) -> GpuFacts:
    """Return the facts without this process.

    In a container the driver gives it another number than the system does. So a number that came later, and is none of
    this system's, is taken for its own.
    """
    known, own = _before.setdefault(facts.uuid, set(facts.processes)), os.getpid()
    if own in facts.processes:
        _opened.add(facts.uuid)
    others = {
        pid: used
        for pid, used in facts.processes.items()
        if pid != own and (pid in known or Path(f"/proc/{pid}").exists())
    }
    return replace(facts, processes=others)


def open_device(
    machine: Machine,
    device_bytes: int,
    host_bytes: int,
    *,
    built_for: Collection[str] = (),
    allowed_bytes: int | None = None,
) -> CudaDevice:
    """Check and open the GPU that a machine file names, with two pools.

    Args:
        machine: of kind cuda.
        device_bytes: of the pool in device memory.
        host_bytes: of the pool in pinned memory.
        built_for: architectures of the kernels, as of `require_gpu`.
        allowed_bytes: makes the first pool managed memory, which may have so much device memory once
            `CudaMemory.hold_the_rest` was called.

    Raises:
        BadInputError: the machine file allows less pinned memory, or no managed pool larger than what is allowed.
        AutotmError: what is missing of the GPU or of the host's memory, with its remedy.
    """
    tier, file = machine.slow_tier, f"config/machines/{machine.name}.yaml"
    assert isinstance(tier, CudaTier)
    if tier.capacity_bytes is not None and host_bytes > tier.capacity_bytes:
        raise BadInputError(
            f"{file}: slow_tier.capacity is {tier.capacity_bytes / 1e9:.3f} GB, the program moves up to "
            f"{host_bytes / 1e9:.3f} GB out: raise it, or give a larger limit"
        )
    if allowed_bytes is not None and (beyond_bytes := device_bytes - allowed_bytes) > 0:
        asked = (
            f"managed memory: a pool of {device_bytes / 1e9:.3f} GB with {allowed_bytes / 1e9:.3f} GB of device memory"
        )
        if not tier.managed_oversubscription:
            raise BadInputError(
                f"{file}: {asked}: oversubscription can hang a GPU, until the computer is restarted; to risk it, set "
                "slow_tier.managed_oversubscription: true"
            )
        if beyond_bytes > (available := psutil.virtual_memory().available):
            raise AutotmError(
                f"{asked}: the rest goes to the host, {available / 1e9:.3f} GB of whose memory are free: ask for a "
                "smaller batch or a larger limit"
            )
    facts = visible_gpu(tier.device_index)
    # The context that this process already has there is paid for.
    overhead_bytes = 0 if facts.uuid in _opened else tier.overhead_bytes or 0
    needed_bytes = device_bytes if allowed_bytes is None else min(allowed_bytes, device_bytes)
    require_gpu(facts, needed_bytes, overhead_bytes=overhead_bytes, built_for=built_for)
    device = CudaDevice(tier.device_index, device_bytes, host_bytes, allowed_bytes=allowed_bytes)
    _opened.add(facts.uuid)
    return device


def measured_context(facts: GpuFacts) -> tuple[int, int]:
    """Return CUDA's number of a GPU, and the device memory of this process's context, which is made and stays.

    Memory that other processes take or free meanwhile is counted too.

    Raises:
        AutotmError: CUDA does not show the GPU to this process, or it cannot be opened.
    """
    index = int(load_runtime().call("cudaDeviceGetByPCIBusId", facts.bus_id.encode()))
    with CudaDevice(index, 0, 0) as device:
        _opened.add(facts.uuid)
        return index, max(0, facts.free_bytes - device.free_bytes)
