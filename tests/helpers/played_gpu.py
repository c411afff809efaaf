"""NVIDIA's modules in their places, played: a computer with an H100."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest
from played_cudart import PlayedDriver, PlayedRuntime
from recorded_nvml import Recorded


def plug_in(
    monkeypatch: pytest.MonkeyPatch,
    runtime: PlayedRuntime,
    functions: Mapping[str, Callable[..., None]] = {},
    nvml: Recorded | None = None,
) -> PlayedRuntime:
    """Until the patches are undone; `functions` are its kernels, as `PlayedDriver` takes them."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", PlayedDriver(runtime, functions))
    monkeypatch.setitem(sys.modules, "pynvml", nvml or Recorded())
    return runtime
