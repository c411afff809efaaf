"""Grouped and depthwise convolutions in a whole step, and the kernel plot's convolution, a step of one kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_step
from tvm import relax

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_convolution, lower_network
from autotm.lower.step import whole_step
from autotm.memory.tiers import open_tiers
from autotm.model.config import KernelPlotConfig, ProfileConfig
from autotm.model.errors import AutotmError
from autotm.model.files import load, load_with_provenance, save
from autotm.model.graph import Graph, Initial, OpClass, Role, ScheduleKind, schedules_in
from autotm.model.paths import ConvolutionPaths
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.verify import plain_program
from autotm.stages.context import Context
from autotm.stages.figures import convolution_profile_stage
from autotm.study.figures.kernel_times import OPERANDS, table_of_convolution
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


def test_the_file_says_where_each_schedule_comes_from(tmp_path, objects):
    path = tmp_path / "graph.json"
    graph = lower_network(network(), "test", host_target(2), 2, path, tmp_path / "kernels.so", {}, objects)
    kinds = schedules_in(load_with_provenance(path, "graph", Graph)[1])
    assert set(kinds) == {kernel.function for kernel in graph.kernels}
    assert {kinds[kernel.function] for kernel in graph.kernels if kernel.op == "conv2d"} == {ScheduleKind.GENERATED}


def test_a_gradient_that_a_rule_refuses_is_named_with_its_operator():
    net = NetworkBuilder("backwards", 1, RATE)
    x = net.input("images", (1, 9, 9, 4), Initial("normal"))
    y = net.conv(x, 8, 3)
    y = net.emit(relax.op.strided_slice(y, [1], [6], [-8], [-1]))
    with pytest.raises(AutotmError, match=r"network backwards: relax\.strided_slice: .*positive strides"):
        whole_step(net.softmax_cross_entropy(net.global_mean(y)))


# The kernel plot's convolution: one kernel that computes what it should, timed in all eight placements.

BATCH, IMAGE, CHANNELS = 2, 6, 16
QUICK = ProfileConfig(patience_s=0.05, min_repeats=2, max_repeats=3, kernel_s=0.0, rotation_bytes=0)


def test_it_is_one_kernel_that_convolves(tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    graph = lower_convolution(BATCH, IMAGE, CHANNELS, "test", host_target(1), 1, tmp_path / "graph.json", library, {})
    (kernel,) = graph.kernels
    assert (kernel.op, kernel.op_class) == ("conv2d", OpClass.CONV_FORWARD)
    assert kernel.flops == 2 * BATCH * IMAGE**2 * 9 * CHANNELS**2
    assert [operand.tensor for operand in kernel.inputs + kernel.outputs] == list(OPERANDS)
    assert load(tmp_path / "graph.json", "graph", Graph) == graph
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(operand.shape, dtype="float32") for operand in kernel.inputs]
    data, weight = (aligned(array.shape, array) for array in arrays)
    others = [aligned(operand.shape) for operand in kernel.outputs + kernel.workspaces]
    KernelLibrary.load(library).bind(kernel.function, [data, weight, *others])()
    np.testing.assert_allclose(others[0], convolved(data, weight), rtol=1e-4, atol=1e-4)


def test_its_profile_has_every_placement(tmp_path: Path) -> None:
    machine = small_step.machine()
    paths = ConvolutionPaths(tmp_path, machine, "test")
    save(paths.links, "links", small_step.links(), {})
    convolution = KernelPlotConfig(image=IMAGE, channels=CHANNELS)
    context = Context(machine, small_step.DEVICES, 20)
    convolution_profile_stage(context, convolution, BATCH, QUICK, paths)
    table = table_of_convolution(paths.graph, paths.profile)
    assert len(table.drop_duplicates(list(OPERANDS))) == 8
    assert (table["median_ns"] > 0).all()
    assert table["relative"].iloc[0] == 1.0
    assert table["time"].tolist() == ["measured", *["emulated"] * 7]
    assert table["weight_shape"].iloc[0] == f"3x3x{CHANNELS}x{CHANNELS}"
    step = load(paths.graph, "graph", Graph)
    assert {tensor.role for tensor in step.tensors} >= {Role.INPUT, Role.PARAMETER, Role.RESULT}


def aligned(shape: tuple[int, ...], values: np.ndarray | float = 0.0) -> np.ndarray:
    """A float32 array at an address that kernels take."""
    size = int(np.prod(shape))
    raw = np.zeros(size + 16, "float32")
    start = -raw.ctypes.data % 64 // 4
    array = raw[start : start + size].reshape(shape)
    array[...] = values
    return array


def convolved(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """3 x 3 convolution, padding 1, in float64."""
    padded = np.pad(data.astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = (
        np.einsum("nhwc,ck->nhwk", padded[:, r : r + IMAGE, s : s + IMAGE], weight[r, s].astype("float64"))
        for r in range(3)
        for s in range(3)
    )
    return sum(parts, np.zeros(data.shape))


@pytest.mark.parametrize("image", [0, 5000])
def test_a_size_that_is_none_is_refused(image: int) -> None:
    with pytest.raises(ValueError, match="image"):
        KernelPlotConfig(image=image)
