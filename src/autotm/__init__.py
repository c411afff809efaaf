"""How little fast memory a training step needs, where each tensor lives, when it moves, and what that costs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotm.api import Placement, TrainingStep, plan, prepare, sweep
    from autotm.api.offload import offload
    from autotm.model.files import AutotmError
    from autotm.model.step import Adam, AdamW, Initial, Sgd, Training
    from autotm.zoo import Network, NetworkBuilder
    from autotm.zoo.frontend import from_onnx, from_torch

_HOMES = {
    "Adam": "autotm.model.step.training",
    "AdamW": "autotm.model.step.training",
    "AutotmError": "autotm.model.files.errors",
    "Initial": "autotm.model.step.role",
    "Network": "autotm.zoo",
    "NetworkBuilder": "autotm.zoo",
    "Placement": "autotm.api",
    "Sgd": "autotm.model.step.training",
    "from_onnx": "autotm.zoo.frontend",
    "from_torch": "autotm.zoo.frontend",
    "Training": "autotm.model.step.training",
    "TrainingStep": "autotm.api",
    "offload": "autotm.api.offload",
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
