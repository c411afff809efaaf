"""Networks, written in Relax."""

from autotm.zoo.builder import NetworkBuilder
from autotm.zoo.network import Network
from autotm.zoo.registry import build, networks

__all__ = ["Network", "NetworkBuilder", "build", "networks"]
