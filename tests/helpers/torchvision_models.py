"""`torchvision.models`, also where torchvision's own compiled operators do not fit the PyTorch that is installed."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


def models() -> ModuleType:
    """The module `torchvision.models`; the test is skipped where torchvision is not installed.

    Importing torchvision registers shapes for its operators, which fails where they are not there; nothing here uses
    them, so their names are enough.
    """
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
    found: ModuleType = pytest.importorskip("torchvision.models")
    return found
