"""Finding, checking and opening a GPU; what its context takes."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import Runtime, load_runtime, text_of
from autotm.memory.gpu.facts import GpuFacts, NoGpuError, gpu_facts
from autotm.memory.gpu.interface import DeviceMemoryError
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import CudaTier, Machine

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
        built_for: architectures of its kernels, such as `sm_80`; `compute_80` where they are PTX, which the driver
            compiles; nothing where they are compiled when they are loaded.
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
    if built_for and not any(runs_on(name, facts.capability) for name in built_for):
        raise GpuRefusedError(
            f"{here}: is {facts.architecture}, the kernels are built for {', '.join(sorted(built_for))}: lower the "
            f"network again for {facts.architecture}"
        )
    if alone and facts.processes:
        pids = ", ".join(f"{one.pid} ({_size(one.used_bytes)})" for one in facts.processes)
        raise GpuRefusedError(
            f"{here}: other processes compute on it: {pids}: times would be too long; end them (nvidia-smi), or wait"
        )
    if needed_bytes + overhead_bytes > facts.free_bytes:
        raise DeviceMemoryError(
            f"{here}: {needed_bytes / 1e9:.3f} GB are asked for and {overhead_bytes / 1e9:.3f} GB go to the context; "
            f"{facts.free_bytes / 1e9:.3f} of {facts.total_bytes / 1e9:.3f} GB are free: ask for a smaller limit or "
            "batch, or end what else uses it (nvidia-smi)"
        )


def runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether machine code for `sm_XY`, or PTX for `compute_XY`, runs there.

    Machine code runs on its major version from its minor one on; PTX on all that is as new (CUDA's programming guide,
    "Binary compatibility"). A letter behind the number binds either to that version, or its family.
    """
    kind, _, number = architecture.partition("_")
    digits = number.rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if number.endswith("a"):
        return (major, minor) == capability
    if kind == "compute" and not number.endswith("f"):
        return (major, minor) <= capability
    return major == capability[0] and minor <= capability[1]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _size(size_bytes: int | None) -> str:
    return "memory not told" if size_bytes is None else f"{size_bytes / 1e9:.3f} GB"


_BUS_ID_CHARACTERS = 32
_opened: set[str] = set()
"""GPUs that this process has a context on, until it ends."""
_before: dict[str, set[int]] = {}
"""By GPU, the processes that were on it when this one first looked, before it called CUDA."""


def visible_gpu(index: int, *, runtime: Runtime | None = None, nvml: Any = None) -> GpuFacts:
    """Facts of the GPU that CUDA numbers so; its processes are those of others.

    CUDA's number is not the driver's: CUDA_VISIBLE_DEVICES chooses, and CUDA puts the fastest first. To ask CUDA for
    the place of a GPU may make a context of this process on it (seen with driver 580 on an H100).

    Args:
        index: CUDA's.
        runtime: NVIDIA's bindings; None loads them.
        nvml: the module `pynvml`; None loads it.

    Raises:
        NoGpuError: there is no driver, or no such GPU.
        AutotmError: the driver is too old, or NVIDIA's packages are not installed.
    """
    found = gpu_facts(nvml)  # First: it tells best what is missing of a driver.
    called = (runtime or load_runtime()).call("cudaDeviceGetPCIBusId", _BUS_ID_CHARACTERS, index)
    place = _place(text_of(called))
    for facts in found:
        if _place(facts.bus_id) == place:
            return _with_others(facts)
    raise NoGpuError(f"GPU {index} of CUDA, at {place}, is none of the driver's: look at nvidia-smi")


def _with_others(facts: GpuFacts) -> GpuFacts:
    """Facts without this process.

    In a container the driver gives it another number than the system does. So a number that came later, and is none of
    this system's, is taken for its own.
    """
    known, own = _before.setdefault(facts.uuid, {one.pid for one in facts.processes}), os.getpid()
    if any(one.pid == own for one in facts.processes):
        _opened.add(facts.uuid)
    others = (
        one for one in facts.processes if one.pid != own and (one.pid in known or Path(f"/proc/{one.pid}").exists())
    )
    return replace(facts, processes=tuple(others))


def open_gpu(
    index: int,
    device_bytes: int,
    host_bytes: int,
    *,
    overhead_bytes: int = 0,
    built_for: Collection[str] = (),
    allowed_bytes: int | None = None,
    runtime: Runtime | None = None,
    nvml: Any = None,
) -> CudaDevice:
    """Open a GPU after it was checked.

    Args:
        index: CUDA's number of it.
        device_bytes: of the pool in its memory.
        host_bytes: of the pool in pinned memory of the host.
        overhead_bytes: as of `require_gpu`.
        built_for: likewise.
        allowed_bytes: as of `CudaDevice`.
        runtime: NVIDIA's bindings; None loads them.
        nvml: the module `pynvml`; None loads it.

    Raises:
        AutotmError: what is missing, with its remedy.
    """
    runtime = runtime or load_runtime()
    facts = visible_gpu(index, runtime=runtime, nvml=nvml)
    if facts.uuid in _opened:
        overhead_bytes = 0  # The context that this process has there is paid for.
    needed_bytes = device_bytes if allowed_bytes is None else min(allowed_bytes, device_bytes)
    require_gpu(facts, needed_bytes, overhead_bytes=overhead_bytes, built_for=built_for)
    device = CudaDevice(index, device_bytes, host_bytes, allowed_bytes=allowed_bytes, runtime=runtime)
    _opened.add(facts.uuid)
    return device


def open_device(machine: Machine, device_bytes: int, host_bytes: int, *, built_for: Collection[str] = ()) -> CudaDevice:
    """The GPU that a machine file names, with its two pools.

    Args:
        machine: of kind cuda.
        device_bytes: of the pool in device memory.
        host_bytes: of the pool in pinned memory.
        built_for: architectures of the kernels, as of `require_gpu`.

    Raises:
        BadInputError: the machine file allows less pinned memory.
        AutotmError: what is missing of the GPU, with its remedy.
    """
    tier = machine.slow_tier
    assert isinstance(tier, CudaTier)
    if tier.capacity_bytes is not None and host_bytes > tier.capacity_bytes:
        raise BadInputError(
            f"config/machines/{machine.name}.yaml: slow_tier.capacity is {tier.capacity_bytes / 1e9:.3f} GB, the "
            f"program moves up to {host_bytes / 1e9:.3f} GB out: raise it, or give a larger limit"
        )
    overhead_bytes = tier.overhead_bytes or 0
    return open_gpu(tier.device_index, device_bytes, host_bytes, overhead_bytes=overhead_bytes, built_for=built_for)


def open_managed(
    machine: Machine, pool_bytes: int, host_bytes: int, *, allowed_bytes: int, built_for: Collection[str] = ()
) -> CudaDevice:
    """The GPU that a machine file names, with a pool of managed memory in place of device memory.

    Args:
        machine: of kind cuda.
        pool_bytes: of that pool.
        host_bytes: of the pool in pinned memory.
        allowed_bytes: device memory that the managed pool may have, once `CudaDevice.keep_allowance` was called.
        built_for: architectures of the kernels, as of `require_gpu`.

    Raises:
        BadInputError: the pool is larger than what is allowed, and the machine file does not allow that.
        AutotmError: what is missing of the GPU or of the host's memory, with its remedy.
    """
    tier = machine.slow_tier
    assert isinstance(tier, CudaTier)
    beyond_bytes = pool_bytes - allowed_bytes
    asked = f"managed memory: a pool of {pool_bytes / 1e9:.3f} GB with {allowed_bytes / 1e9:.3f} GB of device memory"
    if beyond_bytes > 0 and not tier.managed_oversubscription:
        raise BadInputError(
            f"config/machines/{machine.name}.yaml: {asked}: oversubscription can hang a GPU, until the computer is "
            "restarted; to risk it, set slow_tier.managed_oversubscription: true"
        )
    if beyond_bytes > (available := psutil.virtual_memory().available):
        raise AutotmError(
            f"{asked}: the rest goes to the host, {available / 1e9:.3f} GB of whose memory are free: ask for a smaller "
            "batch or a larger limit"
        )
    return open_gpu(
        tier.device_index,
        pool_bytes,
        host_bytes,
        overhead_bytes=tier.overhead_bytes or 0,
        built_for=built_for,
        allowed_bytes=allowed_bytes,
    )


def context_bytes(facts: GpuFacts, device: CudaDevice) -> int:
    """Device memory that a context took: what was free before it, less what was free when it was made.

    Other processes that take or free memory in between are counted too.
    """
    return max(0, facts.free_bytes - device.free_bytes)


def measured_context(facts: GpuFacts, *, runtime: Runtime | None = None) -> tuple[int, int]:
    """CUDA's number of a GPU, and what a context of this process takes of its memory; one is made, and stays.

    Raises:
        AutotmError: CUDA does not show the GPU to this process, or it cannot be opened.
    """
    runtime = runtime or load_runtime()
    index = int(runtime.call("cudaDeviceGetByPCIBusId", facts.bus_id.encode()))
    with CudaDevice(index, 0, 0, runtime=runtime) as device:
        _opened.add(facts.uuid)
        return index, context_bytes(facts, device)


def _place(bus_id: str) -> str:
    """The driver writes a domain of eight digits, CUDA one of four."""
    return bus_id.lower()[-len("0000:00:00.0") :]
