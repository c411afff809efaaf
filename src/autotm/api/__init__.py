"""autotm from Python: `autotm.plan(network, limit="4:1").run()`, `autotm.offload(module, ...)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotm.api.preparing import plan, prepare, sweep
    from autotm.api.training_step import Placement, TrainingStep


__all__ = ["Placement", "TrainingStep", "plan", "prepare", "sweep"]

_HOMES = {
    "Placement": "training_step",
    "TrainingStep": "training_step",
    "plan": "preparing",
    "prepare": "preparing",
    "sweep": "preparing",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: steps of PyTorch (`offload`) need no TVM. No file here has such a name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotm.api' has no attribute '{name}'")
    return getattr(import_module(f"autotm.api.{_HOMES[name]}"), name)
