"""What must hold of a GPU before anything is allocated on it or runs there."""

from __future__ import annotations

from collections.abc import Collection

from autotm.memory.gpu.facts import GpuFacts
from autotm.memory.gpu.interface import DeviceMemoryError
from autotm.model.files import AutotmError

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
