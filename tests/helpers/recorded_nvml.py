"""Answers of NVIDIA's management library as `pynvml` gives them, for GPUs that are not here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from autotm.memory.gpu.opening import GpuFacts, gpu_facts


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818 - NVIDIA's name
    pass


@dataclass
class Recorded:
    """The module `pynvml`; each field is an answer, an exception is raised."""

    init: Exception | None = None
    names: tuple[str, ...] = ("NVIDIA H100 80GB HBM3",)
    driver: str = "580.65.06"
    cuda: int = 13000
    capability: tuple[int, int] = (9, 0)
    memory: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            total=85_520_809_984, reserved=601_227_264, used=3_145_728, free=84_916_436_992
        )
    )
    processes: tuple[SimpleNamespace, ...] | None = ()
    shut: int = 0
    nvmlMemory_v2: int = 0x02000028  # noqa: N815
    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init is not None:
            raise self.init

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut += 1

    def __getattr__(self, name: str):
        answers = {
            "nvmlDeviceGetCount": lambda: len(self.names),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: self.cuda,
            "nvmlDeviceGetName": lambda handle: self.names[handle],
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0"),
            "nvmlSystemGetDriverVersion": lambda: self.driver,
            "nvmlDeviceGetCudaComputeCapability": lambda _: self.capability,
            "nvmlDeviceGetComputeRunningProcesses": self._processes,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _memory(self, _: int, version: int | None = None) -> SimpleNamespace:
        if version is not None and self.cuda < 11060:
            raise NVMLError("Function Not Found")
        return self.memory

    def _processes(self, _: int) -> list[SimpleNamespace]:
        if self.processes is None:
            raise NVMLError("Insufficient Permissions")
        return list(self.processes)


def facts_of(nvml: Recorded) -> list[GpuFacts]:
    """What is read from these answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", nvml)
        return gpu_facts()
