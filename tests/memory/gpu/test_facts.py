"""Facts of GPUs as the driver tells them, and what is refused before anything runs, each with its remedy."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from recorded_nvml import NVMLError, NVMLError_LibraryNotFound, Recorded

from autotm.memory.gpu.facts import GpuFacts, NoGpuError, gpu_facts
from autotm.memory.gpu.interface import DeviceMemoryError
from autotm.memory.gpu.opening import GpuRefusedError, require_gpu, runs_on


def h100() -> GpuFacts:
    return gpu_facts(Recorded())[0]


def test_what_the_driver_tells() -> None:
    nvml = Recorded(processes=(SimpleNamespace(pid=77, usedGpuMemory=None),))
    (facts,) = gpu_facts(nvml)
    assert (facts.name, facts.architecture, facts.cuda) == ("NVIDIA H100 80GB HBM3", "sm_90", (13, 0))
    assert facts.total_bytes == facts.reserved_bytes + facts.used_bytes + facts.free_bytes
    assert facts.processes[0].pid == 77
    assert nvml.shut == 1


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
        gpu_facts(nvml)


def test_no_driver_here() -> None:
    nvml = pytest.importorskip("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        with pytest.raises(NoGpuError, match="NVIDIA driver"):
            gpu_facts()
    else:
        assert gpu_facts()


def test_the_recorded_calls_are_nvidias() -> None:
    nvml = pytest.importorskip("pynvml")
    assert nvml.nvmlMemory_v2 == Recorded.nvmlMemory_v2
    assert issubclass(nvml.NVMLError_LibraryNotFound, nvml.NVMLError)


def test_a_gpu_that_serves() -> None:
    require_gpu(h100(), 80_000_000_000, overhead_bytes=500_000_000, built_for=["sm_80", "sm_90"])


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
        (
            Recorded(processes=(SimpleNamespace(pid=77, usedGpuMemory=3_000_000_000),)),
            {},
            r"other processes compute on it: 77 \(3.000 GB\): .*nvidia-smi",
        ),
    ],
)
def test_a_gpu_that_is_refused(nvml: Recorded, asked: dict, said: str) -> None:
    with pytest.raises(GpuRefusedError, match=said):
        require_gpu(gpu_facts(nvml)[0], **{"needed_bytes": 1000, **asked})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"needed_bytes": 85_000_000_000}, r"85.000 GB are asked .* 84.916 of 85.521 GB are free: .*limit"),
        ({"needed_bytes": 84_800_000_000, "overhead_bytes": 500_000_000}, "0.500 GB go to the context"),
    ],
)
def test_too_little_memory_is_an_error_of_its_own(asked: dict, said: str) -> None:
    with pytest.raises(DeviceMemoryError, match=said):
        require_gpu(gpu_facts(Recorded())[0], **asked)


def test_processes_that_the_driver_keeps_to_itself_are_none() -> None:
    assert gpu_facts(Recorded(processes=None))[0].processes == ()


def test_others_may_share_it_where_nothing_is_timed() -> None:
    facts = gpu_facts(Recorded(processes=(SimpleNamespace(pid=77, usedGpuMemory=None),)))[0]
    with pytest.raises(GpuRefusedError, match="memory not told"):
        require_gpu(facts, 0)
    require_gpu(replace(facts), 0, alone=False)


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("sm_80", (8, 0), True), ("sm_80", (8, 6), True), ("sm_86", (8, 0), False), ("sm_80", (9, 0), False),
        ("compute_80", (9, 0), True), ("compute_90", (8, 9), False), ("sm_90a", (9, 0), True),
        ("compute_90a", (10, 0), False), ("sm_100f", (10, 3), True), ("compute_100f", (12, 0), False),
        ("sm_120", (12, 0), True),
    ],
)  # fmt: skip
def test_where_code_runs(architecture: str, capability: tuple[int, int], runs: bool) -> None:
    assert runs_on(architecture, capability) is runs
