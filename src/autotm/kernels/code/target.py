"""What schedules need to know of the machine: vector width, register count, cache sizes."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm.target import codegen

from autotm.model.files import BadInputError
from autotm.model.machine import Machine

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DEFAULT_L1_BYTES = 32 << 10
_DEFAULT_L2_BYTES = 512 << 10


@dataclass(frozen=True)
class TargetInfo:
    """The properties of one core that tile sizes depend on."""

    lanes: int
    """float32 lanes of one vector register."""
    registers: int
    """Architectural vector registers."""
    l1_bytes: int
    """First-level data cache of one core."""
    l2_bytes: int
    """Second-level cache of one core."""

    def __post_init__(self) -> None:
        """Refuse sizes no schedule can work with."""
        if min(self.lanes, self.registers, self.l1_bytes, self.l2_bytes) <= 0:
            message = f"target properties must be positive: {self}"
            raise ValueError(message)


def host_target(threads: int | None = None) -> tvm.target.Target:
    """The LLVM target of this host's CPU; `num-cores` is `threads`, or the cores this process may use."""
    cores = threads if threads is not None else len(os.sched_getaffinity(0))
    return tvm.target.Target({"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu()), "num-cores": cores})


def machine_target(machine: Machine) -> tvm.target.Target:
    """The target that a machine file names: this host's CPU, or a TVM target string.

    Raises:
        BadInputError: TVM does not know the target.
    """
    if machine.target == "host":
        return host_target(machine.threads)
    try:
        return tvm.target.Target(machine.target)
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise BadInputError(
            f"machine '{machine.name}': target: {machine.target!r} is not a TVM target ({reason}); give host, or e.g. "
            '\'{"kind": "llvm", "mcpu": "haswell"}\''
        ) from None


def target_info(target: tvm.target.Target) -> TargetInfo:
    """Vector width and registers from the target's CPU features, cache sizes from the host.

    The `mcpu` decides the instruction set, so that an AVX2 target can be compiled and run on an AVX-512 host.
    """
    if codegen.target_has_features("avx512f", target):
        lanes, registers = 16, 32
    elif codegen.target_has_features("avx", target):
        lanes, registers = 8, 16
    else:
        lanes, registers = 4, 32 if "aarch64" in str(target.attrs.get("mtriple", "")) else 16
    return TargetInfo(
        lanes=lanes,
        registers=registers,
        l1_bytes=_cache_bytes(1, _DEFAULT_L1_BYTES),
        l2_bytes=_cache_bytes(2, _DEFAULT_L2_BYTES),
    )


@functools.cache
def _cache_bytes(level: int, default: int) -> int:
    for index in sorted(_CACHES.glob("index*")):
        try:
            found = int((index / "level").read_text()), (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if found in ((level, "Data"), (level, "Unified")):
            return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
    return default


_LINUX_NAMES = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "sse3": "pni", "bmi": "bmi1"}


def cpu_flags(target: tvm.target.Target) -> list[str]:
    """Vector instructions that code for a CPU target may use, as Linux names them in /proc/cpuinfo.

    Of those that LLVM names otherwise, the ones that generated kernels can meet are translated.
    """
    found = {_LINUX_NAMES.get(name, name) for name in map(str, codegen.llvm_get_cpu_features(target))}
    return sorted(found & _VECTOR_FLAGS)


_VECTOR_FLAGS = frozenset(
    {"pni", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f", "avx512bw"}
    | {"avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi"}
)
