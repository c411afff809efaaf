"""A step lowered for GPUs is two files: the graph, and its kernels as a fatbin with their launches."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.source import ARCHITECTURES, fatbin
from autotm.kernels.library import FatbinLibrary
from autotm.lower import cuda
from autotm.lower.cuda import lower_for_gpu
from autotm.model.files import load, load_with_provenance
from autotm.model.graph import SCHEDULES_KEY, Graph, Initial, ScheduleKind
from autotm.model.launch import Convolution, Launch, Product, VendorAlgorithm, VendorCall
from autotm.zoo import Network, NetworkBuilder, build


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


def offers(problem: Convolution | Product) -> list[VendorAlgorithm]:
    """What a library might say."""
    vendor = "cudnn" if isinstance(problem, Convolution) else "cublas"
    return [VendorAlgorithm(vendor, "9.28.1", "eng1", 100)]


def convolutions() -> Network:
    """Two of them, since only the second's input has a gradient; the pool keeps that of the product by itself."""
    net = NetworkBuilder("convolutions", 2, 0.01)
    x = net.input("images", (2, 8, 8, 3), Initial("normal"))
    x = net.conv(net.conv(x, 8, 3, padding=1), 8, 3, padding=1)
    x = net.reshape(net.max_pool(x, 2, 2), (2, 128))
    return net.softmax_cross_entropy(net.dense(x, 10, relu=False))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_what_libraries_offer_is_an_alternative_whose_launches_of_ours_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That there is code for every architecture is shown above, and each takes seconds.
    monkeypatch.setattr(cuda, "fatbin", functools.partial(fatbin, architectures=("sm_90",)))
    network = convolutions()
    files = tmp_path / "graph.json", tmp_path / "kernels.zip"
    graph = lower_for_gpu(network, "tiny", device_named("h100"), *files, {}, None, "all", offers=offers)
    library = FatbinLibrary.load(files[1])
    kinds = load_with_provenance(files[0], "graph", Graph)[1][SCHEDULES_KEY]
    found = [other for kernel in graph.kernels for other in kernel.alternatives if other.name.endswith("eng1")]
    assert {other.name for other in found} == {"cudnn eng1", "cublas eng1"}
    for other in found:
        launches = library.launches[other.function]
        assert [type(one) for one in launches].count(VendorCall) == 1
        assert kinds[other.function] == ScheduleKind.VENDOR
        for one in launches:
            assert not isinstance(one, Launch) or one.function.encode() in library.image
    # Turned weights before, what the step has fused after.
    assert {len(library.launches[other.function]) for other in found} == {1, 2, 3}
