"""Grouped and depthwise convolutions in a whole step, and those that have no kernel."""

from __future__ import annotations

import pytest
import small_step
from tvm import relax

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_network
from autotm.lower.step import whole_step
from autotm.memory.tiers import open_tiers
from autotm.model.errors import AutotmError
from autotm.model.graph import Initial
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.verify import plain_program
from autotm.zoo import Network, NetworkBuilder

RATE = 0.01


def network() -> Network:
    """A convolution in groups, one of each channel, and a classifier."""
    net = NetworkBuilder("groups", 4, RATE)
    x = net.input("images", (4, 9, 9, 6), Initial("normal"))
    x = net.conv(x, 24, 3, stride=2, padding=1, groups=3)
    x = net.conv(x, 24, 3, padding=1, groups=24)
    return net.softmax_cross_entropy(net.dense(net.global_mean(x), 10, relu=False))


def test_a_step_goes_down_the_gradient(tmp_path, objects):
    """To first order the loss falls by rate x the squared length of the gradient, whose steps the weights took."""
    net, library = network(), tmp_path / "kernels.so"
    graph = lower_network(net, "test", host_target(2), 2, tmp_path / "graph.json", library, {}, objects)
    ops = [kernel.op for kernel in graph.kernels]
    for name in ("conv2d", "conv2d_weight_gradient"):
        assert (ops.count(name), ops.count(f"depthwise_{name}")) == (1, 1)
    assert (ops.count("conv2d_data_gradient"), ops.count("depthwise_conv2d_data_gradient")) == (0, 1)
    arguments = Arguments.allocate(graph)
    arguments.fill(5)
    before = {name: arguments.value(name).astype("float64") for name in net.parameters}
    program = plain_program(graph)
    losses = []
    with open_tiers(small_step.machine(), None, program.fast_bytes, 0, small_step.DEVICES, stretch=1.0) as tiers:
        executor = prepare(graph, KernelLibrary.load(library), program, arguments, tiers)
        for _ in range(2):
            executor.step()
            losses.append(float(arguments.value("loss")))
            if len(losses) == 1:
                moved = sum(((arguments.value(name) - old) ** 2).sum() for name, old in before.items())
    assert losses[0] - losses[1] == pytest.approx(moved / RATE, rel=0.05)


def test_a_gradient_that_a_rule_refuses_is_named_with_its_operator():
    net = NetworkBuilder("backwards", 1, RATE)
    x = net.input("images", (1, 9, 9, 4), Initial("normal"))
    y = net.conv(x, 8, 3)
    y = net.emit(relax.op.strided_slice(y, [1], [6], [-8], [-1]))
    with pytest.raises(AutotmError, match=r"network backwards: relax\.strided_slice: .*positive strides"):
        whole_step(net.softmax_cross_entropy(net.global_mean(y)))
