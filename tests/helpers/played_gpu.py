"""NVIDIA's modules in their places, played: a computer with an H100."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from played_cudart import PlayedDriver, PlayedRuntime
from recorded_nvml import Recorded


def plug_in(
    monkeypatch: pytest.MonkeyPatch, runtime: PlayedRuntime, functions: dict[str, Callable[..., None]]
) -> PlayedDriver:
    """Until the patches are undone; `functions` are its kernels, as `PlayedDriver` takes them."""
    driver = PlayedDriver(runtime, functions)
    modules: dict[str, Any] = {
        "cuda.bindings.runtime": runtime,
        "cuda.bindings.driver": driver,
        "pynvml": Recorded(),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return driver
