"""A GPU is found by CUDA's number, checked before anything is taken, and what its context took is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from played_cudart import PlayedRuntime
from recorded_nvml import Recorded

from autotm.memory.gpu import (
    GpuRefusedError,
    NoGpuError,
    context_bytes,
    gpu_facts,
    measured_context,
    open_gpu,
    opening,
    visible_gpu,
)
from autotm.memory.gpu.cuda import Runtime
from autotm.model.files import AutotmError

TWO = Recorded(names=("first", "second"))


def runtime_at(bus_id: str) -> PlayedRuntime:
    played = PlayedRuntime()
    played.cudaDeviceGetPCIBusId = lambda _size, _index: (played.cudaError_t.cudaSuccess, f"{bus_id}\0".encode())
    return played


def test_cudas_first_may_be_the_drivers_second() -> None:
    assert visible_gpu(0, runtime=Runtime(runtime_at("0000:02:00.0")), nvml=TWO).name == "second"
    with pytest.raises(NoGpuError, match="none of the driver's"):
        visible_gpu(0, runtime=Runtime(runtime_at("0000:0C:00.0")), nvml=TWO)


def test_a_gpu_is_opened_and_its_overhead_known() -> None:
    played = PlayedRuntime(device_bytes=Recorded().memory.free - 500_000_000)
    with open_gpu(0, 64, 64, runtime=Runtime(played), nvml=TWO) as device:
        assert context_bytes(visible_gpu(0, runtime=Runtime(played), nvml=TWO), device) == 500_000_000


def test_what_a_context_takes_is_measured() -> None:
    played = PlayedRuntime(device_bytes=Recorded().memory.free - 400_000_000)
    first, second = gpu_facts(TWO)
    assert measured_context(first, runtime=Runtime(played)) == (0, 400_000_000)
    assert not played.streams
    with pytest.raises(AutotmError, match="cudaDeviceGetByPCIBusId"):
        measured_context(second, runtime=Runtime(played))


def test_opened_again_this_process_is_not_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_opened", set())
    nvml = Recorded(memory=SimpleNamespace(total=2000, reserved=0, used=0, free=1500))

    def opened() -> None:
        open_gpu(0, 1000, 64, overhead_bytes=500, runtime=Runtime(PlayedRuntime()), nvml=nvml).close()

    opened()
    nvml.processes = (SimpleNamespace(pid=4_000_000, usedGpuMemory=500),)
    nvml.memory.free = 1000
    opened()
    monkeypatch.setattr(opening, "_opened", set())
    with pytest.raises(GpuRefusedError, match="4000000"):
        opened()


def test_nothing_is_taken_of_a_gpu_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_opened", set())
    played = PlayedRuntime()
    used = Recorded(processes=(SimpleNamespace(pid=77, usedGpuMemory=None),))
    with pytest.raises(GpuRefusedError, match="77"):
        open_gpu(0, 64, 64, runtime=Runtime(played), nvml=used)
    assert not played.memory
    assert not played.streams
