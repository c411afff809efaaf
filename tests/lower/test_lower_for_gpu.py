"""A step lowered for GPUs is two files: the graph, and its kernels as a fatbin with their launches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.source import ARCHITECTURES
from autotm.kernels.library import FatbinLibrary
from autotm.lower.cuda import lower_for_gpu
from autotm.model.files import load
from autotm.model.graph import Graph
from autotm.zoo import build


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_every_kernel_of_the_graph_has_launches(tmp_path: Path) -> None:
    network = build("mlp", {"batch": 16, "width": 64})
    graph = lower_for_gpu(network, "tiny", device_named("h100"), tmp_path / "graph.json", tmp_path / "kernels.zip", {})
    library = FatbinLibrary.load(tmp_path / "kernels.zip")
    assert load(tmp_path / "graph.json", "graph", Graph) == graph
    assert library.architectures == ARCHITECTURES
    assert library.image[:4] == b"\x50\xed\x55\xba", "a fatbin's first bytes"
    for kernel in graph.kernels:
        for launch in library.launches[kernel.function]:
            assert launch.function.encode() in library.image
            assert max(launch.arguments) < len(kernel.operands)
