"""A GPU is found by CUDA's number, told of as the driver does, refused with a remedy, or opened; managed memory too."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import small_step
from played_cudart import PlayedRuntime, plug_in
from recorded_nvml import NVMLError, NVMLError_LibraryNotFound, Recorded, facts_of

from autotm.memory.gpu import opening
from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import DeviceMemoryError, Span
from autotm.memory.gpu.opening import (
    GpuRefusedError,
    NoGpuError,
    gpu_facts,
    measured_context,
    open_device,
    require_gpu,
    visible_gpu,
)
from autotm.memory.opening import open_tiers
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import CudaTier, Machine

MIB = 1 << 20


def machine(**keys: object) -> Machine:
    return replace(small_step.machine(), name="gpu", slow_tier=CudaTier(kind="cuda", **keys))


def process(pid: int, used_bytes: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used_bytes)


Play = Callable[..., PlayedRuntime]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """A GPU of 64 MiB unless options say otherwise, in a process that has opened none before."""
    monkeypatch.setattr(opening, "_opened", set())
    monkeypatch.setattr(opening, "_before", {})

    def played(nvml: Recorded | None = None, **options: object) -> PlayedRuntime:
        return plug_in(monkeypatch, PlayedRuntime(**{"device_bytes": 64 * MIB} | options), nvml=nvml)

    return played


# Facts of GPUs as the driver tells them.


def test_what_the_driver_tells() -> None:
    nvml = Recorded(processes=(process(77),))
    (facts,) = facts_of(nvml)
    assert (facts.name, facts.architecture, facts.cuda) == ("NVIDIA H100 80GB HBM3", "sm_90", (13, 0))
    assert (facts.total_bytes, facts.free_bytes) == (nvml.memory.total, nvml.memory.free)
    assert facts.processes == {77: None}
    assert nvml.shut == 1
    assert facts_of(Recorded(processes=None))[0].processes == {}, "the driver keeps them to itself"


@pytest.mark.parametrize(
    ("nvml", "said"),
    [
        (Recorded(init=NVMLError_LibraryNotFound("NVML Shared Library Not Found")), "no NVIDIA driver: .*--gpus"),
        (Recorded(init=NVMLError("Driver/library version mismatch")), r"does not answer \(Driver/lib.*restart"),
        (Recorded(names=()), "shows no GPU: look at nvidia-smi"),
    ],
)
def test_no_gpu(nvml: Recorded, said: str) -> None:
    with pytest.raises(NoGpuError, match=said):
        facts_of(nvml)


def test_no_driver_here() -> None:
    nvml = pytest.importorskip("pynvml")
    assert nvml.nvmlMemory_v2 == Recorded.nvmlMemory_v2
    assert issubclass(nvml.NVMLError_LibraryNotFound, nvml.NVMLError)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        for call in (gpu_facts, lambda: open_device(machine(), 64, 64)):
            with pytest.raises(NoGpuError, match="NVIDIA driver"):
                call()
    else:
        assert gpu_facts()


# What is refused before anything runs, each with its remedy.


@pytest.mark.parametrize(
    ("nvml", "asked", "said"),
    [
        (Recorded(driver="550.54", cuda=12040), {}, r"driver 550.54 takes CUDA up to 12.4, 13.0 is .*580 or later"),
        (
            Recorded(driver="470.82", cuda=11040, memory=SimpleNamespace(total=2, used=1, free=1)),
            {},
            r"driver 470.82 takes CUDA up to 11.4, 13.0 is .*580 or later",
        ),
        (Recorded(capability=(7, 0)), {}, r"compute capability 7.0; CUDA 13.0 has 7.5"),
        (Recorded(capability=(8, 6)), {"built_for": ["sm_90"]}, r"is sm_86, the kernels .* sm_90: lower .* sm_86"),
        (Recorded(capability=(8, 0)), {"built_for": ["sm_86"]}, "is sm_80, the kernels are built for sm_86"),
        (
            Recorded(processes=(process(77, 3_000_000_000), process(78))),
            {},
            r"other processes compute on it: 77 \(3.000 GB\), 78 \(memory not told\): .*nvidia-smi",
        ),
    ],
)
def test_a_gpu_that_is_refused(nvml: Recorded, asked: dict, said: str) -> None:
    with pytest.raises(GpuRefusedError, match=said):
        require_gpu(facts_of(nvml)[0], 1000, **asked)


def test_too_little_memory_is_an_error_of_its_own_and_enough_serves() -> None:
    (facts,) = facts_of(Recorded())
    with pytest.raises(DeviceMemoryError, match=r"85.000 GB are asked .* 84.916 of 85.521 GB are free: .*limit"):
        require_gpu(facts, 85_000_000_000)
    with pytest.raises(DeviceMemoryError, match=r"0.500 GB go to the context"):
        require_gpu(facts, 84_800_000_000, overhead_bytes=500_000_000)
    require_gpu(facts, 80_000_000_000, overhead_bytes=500_000_000, built_for=["sm_80", "sm_90"])
    require_gpu(facts_of(Recorded(processes=(process(77),)))[0], 0, alone=False)
    for capability, built_for in (((8, 6), "sm_80"), ((12, 0), "sm_120")):
        require_gpu(replace(facts, capability=capability), 0, built_for=[built_for])


def test_memory_is_not_the_processors_and_no_more_is_pinned_than_the_file_allows() -> None:
    with pytest.raises(BadInputError, match="run on the GPU's streams"):
        open_tiers(machine(), None, 64, 64, Path())
    with pytest.raises(BadInputError, match=r"slow_tier.capacity is 1.000 GB, the program moves up to 2.000 GB out"):
        open_device(machine(capacity="1GB"), 64, 2_000_000_000)


def test_nothing_is_taken_of_a_gpu_that_is_refused(play: Play) -> None:
    played = play(Recorded(processes=(process(77),)))
    with pytest.raises(GpuRefusedError, match="77"):
        open_device(machine(), 64, 64)
    assert not played.memory
    assert not played.streams


# Which GPU it is, what its context takes, and which processes are others.

TWO = Recorded(names=("first", "second"))


def test_cudas_first_may_be_the_drivers_second(play: Play) -> None:
    played = play(TWO)
    success = played.cudaError_t.cudaSuccess
    played.cudaDeviceGetPCIBusId = lambda size, _: (success, b"0000:02:00.0\0".ljust(size))
    assert visible_gpu(0).name == "second"
    played.cudaDeviceGetPCIBusId = lambda size, _: (success, b"0000:0C:00.0\0".ljust(size))
    with pytest.raises(NoGpuError, match="none of the driver's"):
        visible_gpu(0)


def test_what_a_context_takes_is_measured(play: Play) -> None:
    played = play(TWO, device_bytes=TWO.memory.free - 400_000_000)
    first, second = gpu_facts()
    assert measured_context(first) == (0, 400_000_000)
    assert not played.streams
    with pytest.raises(AutotmError, match="cudaDeviceGetByPCIBusId"):
        measured_context(second)


@pytest.mark.parametrize("pid", [os.getpid(), 4_000_000], ids=["as the system numbers it", "in a container"])
@pytest.mark.parametrize("only_looks", [False, True])
def test_this_process_is_not_another_and_pays_once(play: Play, pid: int, *, only_looks: bool) -> None:
    """CUDA makes a context, too, where it is asked for the place of a GPU; 500 of the 1500 bytes go to it."""
    nvml = Recorded(memory=SimpleNamespace(total=2000, reserved=0, used=0, free=1500))
    play(nvml)
    if only_looks:
        assert not visible_gpu(0).processes
        pid = os.getpid()
    else:
        open_device(machine(overhead="500B"), 1000, 64).close()
    nvml.processes, nvml.memory.free = (process(pid, 500),), 1000
    open_device(machine(overhead="500B"), 1000, 64).close()


def test_others_are_seen_whenever_they_came(play: Play) -> None:
    before, later = 4_000_000, os.getppid()
    nvml = Recorded(processes=(process(before),))
    play(nvml)
    visible_gpu(0)
    nvml.processes = (process(before), process(later), process(os.getpid()))
    assert list(visible_gpu(0).processes) == [before, later]
    with pytest.raises(GpuRefusedError, match=f"{before}.*{later}"):
        open_device(machine(), 64, 64)


# Managed memory: the driver has what the limit allows, and beyond that only where one is told to.

POOL, ALLOWED = 24 * MIB, 8 * MIB


def managed(pool_bytes: int = POOL, allowed_bytes: int = ALLOWED, *, oversubscription: bool = True) -> CudaDevice:
    return open_device(machine(managed_oversubscription=oversubscription), pool_bytes, 64, allowed_bytes=allowed_bytes)


def test_the_driver_has_what_is_allowed_until_the_device_is_closed(play: Play) -> None:
    played = play()
    with managed() as device:
        assert played.free["device"] == 64 * MIB, "a pool that nobody touched is nowhere"
        device.device_pool.hold_the_rest()
        assert ALLOWED <= played.free["device"] < ALLOWED + 2 * MIB
        span = Span(device.device_pool, POOL - 4096, 4096)
        values = np.arange(4096, dtype=np.uint8)
        device.write(span, values)
        np.testing.assert_array_equal(device.read(span), values)
    assert not played.memory
    assert played.free["device"] == 64 * MIB


def test_what_is_not_to_be_had_in_one_piece_is_held_in_several(play: Play) -> None:
    played = play(largest_bytes=5 * MIB)
    with managed() as device:
        played.free["device"] -= 10 * MIB  # As kernels that were loaded take it.
        device.device_pool.hold_the_rest()
        assert ALLOWED <= played.free["device"] < ALLOWED + 2 * MIB
        assert sum(kind == "device" for kind, _ in played.memory.values()) > 8
    assert not played.memory


def test_a_little_that_cannot_be_held_is_left(play: Play) -> None:
    allowed = 216 * MIB
    played = play(device_bytes=allowed + 2 * MIB + (1 << 16), largest_bytes=MIB)
    with managed(217 * MIB, allowed) as device:
        device.device_pool.hold_the_rest()
        assert played.free["device"] == played.device_bytes


def test_memory_that_cannot_be_held_or_is_not_free_is_an_error(play: Play) -> None:
    played = play(largest_bytes=MIB)
    with managed() as device:
        with pytest.raises(AutotmError, match="beyond the limit could not be held"):
            device.device_pool.hold_the_rest()
        played.free["device"] = ALLOWED - 3 * MIB
        with pytest.raises(AutotmError, match=r"0.008 GB are asked for, 0.005 GB are free"):
            device.device_pool.hold_the_rest()
    assert not played.memory


def test_a_pool_that_fits_needs_no_telling_and_nothing_is_held_beside_it(play: Play) -> None:
    played = play()
    with managed(POOL, POOL, oversubscription=False) as device:
        device.device_pool.hold_the_rest()
        assert played.free["device"] == 64 * MIB
    with open_device(machine(), MIB, 64) as device:
        device.device_pool.hold_the_rest()
        assert played.free["device"] == 63 * MIB, "ordinary pools have no allowance"


def test_a_pool_beyond_its_device_memory_is_refused(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(concurrent=False)
    with pytest.raises(BadInputError, match=r"gpu.yaml.*can hang a GPU.*managed_oversubscription: true"):
        managed(POOL, POOL - 1, oversubscription=False)
    with pytest.raises(AutotmError, match="no concurrent managed access"):
        managed()
    managed(POOL, POOL).close()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=POOL - ALLOWED - 1))
    with pytest.raises(AutotmError, match="the rest goes to the host"):
        managed()
    assert not played.memory
