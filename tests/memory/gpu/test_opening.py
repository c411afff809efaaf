"""A GPU is found by CUDA's number, checked before anything is taken, and what its context took is known."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from played_cudart import PlayedRuntime
from recorded_nvml import Recorded

from autotm.memory.gpu import opening
from autotm.memory.gpu.cuda_memory import Runtime
from autotm.memory.gpu.facts import NoGpuError, gpu_facts
from autotm.memory.gpu.opening import GpuRefusedError, context_bytes, measured_context, open_gpu, visible_gpu
from autotm.model.errors import AutotmError

TWO = Recorded(names=("first", "second"))


def runtime_at(bus_id: str) -> PlayedRuntime:
    played = PlayedRuntime()
    played.cudaDeviceGetPCIBusId = lambda size, _index: (
        played.cudaError_t.cudaSuccess,
        f"{bus_id}\0".encode().ljust(size),
    )
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


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has looked at no GPU."""
    monkeypatch.setattr(opening, "_opened", set())
    monkeypatch.setattr(opening, "_before", {})


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("pid", [os.getpid(), 4_000_000], ids=["as the system numbers it", "in a container"])
def test_this_process_is_not_another(pid: int) -> None:
    nvml = Recorded(memory=SimpleNamespace(total=2000, reserved=0, used=0, free=1500))

    def opened() -> None:
        open_gpu(0, 1000, 64, overhead_bytes=500, runtime=Runtime(PlayedRuntime()), nvml=nvml).close()

    opened()
    nvml.processes = (SimpleNamespace(pid=pid, usedGpuMemory=500),)
    nvml.memory.free = 1000
    opened()


@pytest.mark.usefixtures("fresh")
def test_the_context_that_looking_makes_is_paid_for() -> None:
    """CUDA makes one where it is asked for the place of a GPU; 500 of the 1500 bytes go to it."""
    nvml = Recorded(memory=SimpleNamespace(total=2000, reserved=0, used=0, free=1500))
    assert not visible_gpu(0, runtime=Runtime(PlayedRuntime()), nvml=nvml).processes
    nvml.processes = (SimpleNamespace(pid=os.getpid(), usedGpuMemory=500),)
    nvml.memory.free = 1000
    open_gpu(0, 1000, 64, overhead_bytes=500, runtime=Runtime(PlayedRuntime()), nvml=nvml).close()


@pytest.mark.usefixtures("fresh")
def test_others_are_seen_whenever_they_came() -> None:
    before, later = (SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in (4_000_000, os.getppid()))
    nvml, runtime = Recorded(processes=(before,)), Runtime(PlayedRuntime())
    visible_gpu(0, runtime=runtime, nvml=nvml)
    nvml.processes = (before, later, SimpleNamespace(pid=os.getpid(), usedGpuMemory=1))
    assert [one.pid for one in visible_gpu(0, runtime=runtime, nvml=nvml).processes] == [before.pid, later.pid]
    with pytest.raises(GpuRefusedError, match=f"{before.pid}.*{later.pid}"):
        open_gpu(0, 64, 64, runtime=runtime, nvml=nvml)


@pytest.mark.usefixtures("fresh")
def test_nothing_is_taken_of_a_gpu_that_is_refused() -> None:
    played = PlayedRuntime()
    used = Recorded(processes=(SimpleNamespace(pid=77, usedGpuMemory=None),))
    with pytest.raises(GpuRefusedError, match="77"):
        open_gpu(0, 64, 64, runtime=Runtime(played), nvml=used)
    assert not played.memory
    assert not played.streams
