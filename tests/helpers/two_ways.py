"""A real network with convolutions that may be computed in more than one way, lowered and compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_network
from autotm.model.graph import Graph, Initial
from autotm.zoo import Network, NetworkBuilder


@dataclass(frozen=True)
class Step:
    """A compiled step, and the folder that its files are in."""

    graph: Graph
    library: KernelLibrary
    folder: Path


def network() -> Network:
    """Two convolutions with borders and a classifier."""
    net = NetworkBuilder("two_ways", 4, 0.01)
    x = net.input("images", (4, 20, 20, 3), Initial("normal"))
    x = net.conv(x, 64, 3, padding=1)
    x = net.conv(x, 96, 3, padding=1)
    return net.softmax_cross_entropy(net.dense(net.global_mean(x), 10, relu=False))


def lowered(folder: Path, objects: Path) -> Step:
    """The step with all implementations, for one thread; machine code that `objects` holds is taken from there."""
    library = folder / "kernels.so"
    graph = lower_network(
        network(), "test", host_target(1), 1, folder / "graph.json", library, {}, objects, implementations="all"
    )
    return Step(graph, KernelLibrary.load(library), folder)
