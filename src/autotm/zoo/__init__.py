"""Networks, written in Relax."""

from autotm.zoo.builder import NetworkBuilder
from autotm.zoo.network import Network
from autotm.zoo.own import call
from autotm.zoo.registry import build, build_from, networks

__all__ = ["Network", "NetworkBuilder", "build", "build_from", "call", "networks"]
