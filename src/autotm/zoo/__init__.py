"""Networks, written in Relax or read from PyTorch or ONNX; what reads those is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autotm.model.errors import AutotmError
from autotm.zoo.builder import NetworkBuilder
from autotm.zoo.network import Fill, Network, Origin, is_gradient, load_network, save_network, with_values_stored
from autotm.zoo.registry import build, build_from, call, networks

if TYPE_CHECKING:
    from autotm.zoo.onnx.network import from_onnx
    from autotm.zoo.torch.network import from_torch


__all__ = [
    "Fill",
    "Network",
    "NetworkBuilder",
    "Origin",
    "build",
    "build_from",
    "call",
    "from_onnx",
    "from_torch",
    "is_gradient",
    "load_network",
    "networks",
    "save_network",
    "with_values_stored",
]

_LIBRARIES = {"from_onnx": "onnx", "from_torch": "torch"}
"""The optional library that each importer needs; its package here has the same name."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used.

    Raises:
        AutotmError: the library that it needs is not installed.
    """
    if name not in _LIBRARIES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    library = _LIBRARIES[name]
    try:
        return getattr(import_module(f"autotm.zoo.{library}.network"), name)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise AutotmError(
            f"{name} needs {library}, which is not installed here; pip install 'autotm[{library}]'"
        ) from None
