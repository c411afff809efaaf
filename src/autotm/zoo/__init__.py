"""Networks, written in Relax or read from elsewhere; `frontend` has a room for each other source."""

from autotm.zoo.network import Fill, Network, NetworkBuilder, Origin, is_gradient, with_values_stored
from autotm.zoo.own import call
from autotm.zoo.registry import build, build_from, networks

__all__ = [
    "Fill",
    "Network",
    "NetworkBuilder",
    "Origin",
    "build",
    "build_from",
    "call",
    "is_gradient",
    "networks",
    "with_values_stored",
]
