"""The deepest networks' steps have no more kernels than AutoTM's own graphs of them."""

from __future__ import annotations

import pytest

from autotm import zoo
from autotm.kernels.target import host_target
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.step import whole_step
from autotm.zoo.paper import densenet, resnet


def functions(network: zoo.Network) -> list[str]:
    """The fused function of each call, named after the operators in it."""
    calls, _ = extract_calls(fused_kernels(whole_step(network).module, host_target(2)))
    return [call.function for call in calls]


MOST = {"resnet200": 2233, "densenet264": 3176}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), MOST.items())
def test_no_more_kernels_than_the_original(name, most):
    # reference/solver.md §2.
    assert len(functions(zoo.build(name, {"batch": 2, "image": 32}))) <= most


def test_blocks_of_a_deep_network_add_no_more_kernels_than_the_originals():
    """Its stages repeat blocks: what one block more in each adds tells how many kernels ResNet-200 has."""
    depths = (3, 24, 36, 3)
    least, more = (len(functions(resnet("resnet", 2, 32, (count,) * len(depths)))) for count in (1, 2))
    assert least + (sum(depths) - len(depths)) * (more - least) / len(depths) <= MOST["resnet200"]


@pytest.mark.parametrize("build", [resnet, densenet])
def test_batch_norm_is_two_kernels_each_way(build):
    network = build("small", 2, 32, (1, 1))
    norms = sum(name.startswith("norm_scale") for name in network.parameters)
    names = [name for name in functions(network) if "conv2d" not in name]
    for kind in ("statistics", "normalise", "gradient_sums", "data_gradient"):
        assert sum(name.count(kind) for name in names) == norms, kind
    assert not any(name.startswith(("relu", "fused_relu", "add", "fused_add")) for name in names)
