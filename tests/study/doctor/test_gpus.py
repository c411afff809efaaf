"""GPUs as `autotm doctor` tells of them: usable, refused, shared, or none, each with a remedy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from recorded_nvml import NVMLError_LibraryNotFound, Recorded
from vendor_cases import installed, missing

from autotm.memory.gpu.facts import GpuFacts, gpu_facts
from autotm.model.errors import AutotmError
from autotm.study.doctor import Finding, Use, gpu_findings, vendor_findings


def told(nvml: Recorded, root: Path, *, context_bytes: int | None = 500_000_000) -> list[Finding]:
    def measured(facts: GpuFacts) -> tuple[int, int]:
        if context_bytes is None:
            raise AutotmError(f"{facts.uuid} is busy")
        return 3, context_bytes

    return list(gpu_findings(root, lambda: gpu_facts(nvml), measured))


def test_a_gpu_is_usable_by_a_line_of_a_machine_file(tmp_path: Path) -> None:
    (found,) = told(Recorded(), tmp_path)
    assert found.use is Use.USABLE
    assert "sm_90, 85.52 GB, 84.92 GB free, driver 580.65.06 (CUDA 13.0); a context takes 0.5 GB" in found.found
    assert found.why == "fast memory, in a machine file: slow_tier: {kind: cuda, device_index: 3}"


def test_what_the_paper_had_is_told_of_a_small_one(tmp_path: Path) -> None:
    memory = SimpleNamespace(total=8_000_000_000, reserved=0, used=0, free=8_000_000_000)
    (found,) = told(Recorded(memory=memory, capability=(8, 6)), tmp_path)
    assert "less than the 10.2 GB" in found.why


@pytest.mark.parametrize(
    ("nvml", "said"), [(Recorded(cuda=12040), "580 or later"), (Recorded(capability=(6, 1)), "2018 or later")]
)
def test_one_that_cannot_be_used(tmp_path: Path, nvml: Recorded, said: str) -> None:
    (found,) = told(nvml, tmp_path)
    assert found.use is Use.UNUSED
    assert said in found.why


def test_one_that_cannot_be_opened(tmp_path: Path) -> None:
    (found,) = told(Recorded(), tmp_path, context_bytes=None)
    assert found.why == "it cannot be opened: GPU-0 is busy"


def test_others_on_it(tmp_path: Path) -> None:
    first, _, second, shared = told(
        Recorded(names=("one", "other"), processes=(SimpleNamespace(pid=7, usedGpuMemory=1),)), tmp_path
    )
    assert (first.what, second.what) == ("GPU 0", "GPU 1")
    assert (shared.what, shared.found, shared.use) == ("GPU 1's processes", "7", Use.CARE)


def test_none_and_one_whose_driver_is_missing(tmp_path: Path) -> None:
    missing = Recorded(init=NVMLError_LibraryNotFound(""))
    (found,) = told(missing, tmp_path)
    assert (found.found, found.use) == ("none", Use.UNUSED)
    assert "no NVIDIA driver" in found.why
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert told(missing, tmp_path)[0].found == "0000:01:00.0"


def test_libraries_beside_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = told(Recorded(), tmp_path)
    played = installed(monkeypatch)
    usable = {one.what: (one.found, one.use) for one in vendor_findings(gpus)}
    assert usable == {"cudnn": ("9.28.1", Use.USABLE), "cublas": ("13.10.0", Use.USABLE)}

    def fails() -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(played.cudnn, "create_handle", fails)
    first, _ = vendor_findings(gpus)
    assert (first.use, "(no memory)" in first.why) == (Use.UNUSED, True)
    missing(monkeypatch)
    for one in vendor_findings(gpus):
        assert (one.found, one.use) == ("not installed", Use.UNUSED)
        assert "pip install 'autotm[nvidia]'" in one.why
    assert not list(vendor_findings([Finding("GPU", "none", Use.UNUSED)])), "nothing could be asked of them"
