"""How little fast memory a training step needs, where each tensor lives, when it moves, and what that costs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotm.api import Placement, TrainingStep, plan, prepare, sweep
    from autotm.api.offload.entry import offload
    from autotm.model.errors import AutotmError
    from autotm.model.graph import Initial
    from autotm.model.training import Adam, AdamW, Sgd, Training
    from autotm.zoo import Network, NetworkBuilder, from_onnx, from_torch


_HOMES = {
    "Adam": "autotm.model.training",
    "AdamW": "autotm.model.training",
    "AutotmError": "autotm.model.errors",
    "Initial": "autotm.model.graph",
    "Network": "autotm.zoo",
    "NetworkBuilder": "autotm.zoo",
    "Placement": "autotm.api",
    "Sgd": "autotm.model.training",
    "from_onnx": "autotm.zoo",
    "from_torch": "autotm.zoo",
    "Training": "autotm.model.training",
    "TrainingStep": "autotm.api",
    "offload": "autotm.api.offload.entry",
    "plan": "autotm.api",
    "prepare": "autotm.api",
    "sweep": "autotm.api",
}
__all__ = [
    "Adam",
    "AdamW",
    "AutotmError",
    "Initial",
    "Network",
    "NetworkBuilder",
    "Placement",
    "Sgd",
    "Training",
    "TrainingStep",
    "from_onnx",
    "from_torch",
    "offload",
    "plan",
    "prepare",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: commands and Snakemake must not wait for TVM."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotm' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
