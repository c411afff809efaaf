"""What `autotm.offload` says where PyTorch is missing or too old."""

from __future__ import annotations

import sys
import types

import pytest

import autotm


def test_pytorch_is_missing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(autotm.AutotmError, match=r"PyTorch is not installed; pip install 'autotm\[torch\]'"):
        autotm.offload(None, None)


def test_pytorch_is_too_old(monkeypatch) -> None:
    old = types.ModuleType("torch")
    old.__version__ = "2.0.1"
    monkeypatch.setitem(sys.modules, "torch", old)
    monkeypatch.setitem(sys.modules, "torch._functorch.aot_autograd", None)
    with pytest.raises(autotm.AutotmError, match=r"PyTorch 2\.0\.1 has no aot_export_joint.*torch>=2\.13"):
        autotm.offload(None, None)
