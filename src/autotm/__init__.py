"""How little fast memory a training step needs, where each tensor lives, when it moves, and what that costs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotm.api.compiling import CompiledModule, CompiledStep, compile  # noqa: A004 - as PyTorch's
    from autotm.api.fits import fits
    from autotm.api.knapsack import knapsack
    from autotm.api.offload.entry import judge, offload
    from autotm.api.preparing import plan, prepare, sweep
    from autotm.api.training_step import Placement, TrainingStep
    from autotm.model.errors import AutotmError
    from autotm.model.graph import Initial
    from autotm.model.training import Adam, AdamW, Sgd, Training
    from autotm.zoo import Network, NetworkBuilder, from_onnx, from_torch


_NAMES = {
    "autotm.api.compiling": ("CompiledModule", "CompiledStep", "compile"),
    "autotm.api.fits": ("fits",),
    "autotm.api.knapsack": ("knapsack",),
    "autotm.api.offload.entry": ("judge", "offload"),
    "autotm.api.preparing": ("plan", "prepare", "sweep"),
    "autotm.api.training_step": ("Placement", "TrainingStep"),
    "autotm.model.errors": ("AutotmError",),
    "autotm.model.graph": ("Initial",),
    "autotm.model.training": ("Adam", "AdamW", "Sgd", "Training"),
    "autotm.zoo": ("Network", "NetworkBuilder", "from_onnx", "from_torch"),
}
__all__ = [
    "Adam",
    "AdamW",
    "AutotmError",
    "CompiledModule",
    "CompiledStep",
    "Initial",
    "Network",
    "NetworkBuilder",
    "Placement",
    "Sgd",
    "Training",
    "TrainingStep",
    "compile",
    "fits",
    "from_onnx",
    "from_torch",
    "judge",
    "knapsack",
    "offload",
    "plan",
    "prepare",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: commands and Snakemake must not wait for TVM."""
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'autotm' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
