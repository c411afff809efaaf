"""Machines of kind cuda: opened on streams, within what their file allows, and never as memory of the processor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_step

from autotm.memory.gpu.opening import open_device
from autotm.memory.tiers import open_tiers, tier_kinds
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import CudaTier

MACHINE = replace(small_step.machine(), slow_tier=CudaTier(kind="cuda", capacity="1GB"))


def test_the_kind_is_known() -> None:
    assert "cuda" in tier_kinds()
    with pytest.raises(BadInputError, match="run on the GPU's streams"):
        open_tiers(MACHINE, None, 64, 64, Path())


def test_no_more_is_pinned_than_the_file_allows() -> None:
    with pytest.raises(BadInputError, match=r"slow_tier.capacity is 1.000 GB, the program moves up to 2.000 GB out"):
        open_device(MACHINE, 64, 2_000_000_000)


def test_without_a_gpu_the_message_has_a_remedy() -> None:
    nvml = pytest.importorskip("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        with pytest.raises(AutotmError, match="NVIDIA driver"):
            open_device(MACHINE, 64, 64)
    else:
        pytest.skip("there is a driver")
