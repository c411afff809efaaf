"""The deepest networks' steps have no more kernels than AutoTM's own graphs of them."""

from __future__ import annotations

import pytest

from autotm import zoo
from autotm.kernels.code.target import host_target
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.step import whole_step
from autotm.zoo.paper import densenet, resnet


def functions(network: zoo.Network) -> list[str]:
    """The fused function of each call, named after the operators in it."""
    calls, _ = extract_calls(fused_kernels(whole_step(network).module, host_target(2)))
    return [call.function for call in calls]


@pytest.mark.parametrize(
    ("name", "most"), [("resnet200", 2233), pytest.param("densenet264", 3176, marks=pytest.mark.slow)]
)
def test_no_more_kernels_than_the_original(name, most):
    # reference/solver.md §2.
    assert len(functions(zoo.build(name, {"batch": 2, "image": 32}))) <= most


@pytest.mark.parametrize("build", [resnet, densenet])
def test_batch_norm_is_two_kernels_each_way(build):
    network = build("small", 2, 32, (1, 1))
    norms = sum(name.startswith("norm_scale") for name in network.parameters)
    names = [name for name in functions(network) if "conv2d" not in name]
    for kind in ("statistics", "normalise", "gradient_sums", "data_gradient"):
        assert sum(name.count(kind) for name in names) == norms, kind
    assert not any(name.startswith(("relu", "fused_relu", "add", "fused_add")) for name in names)
