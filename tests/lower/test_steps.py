"""Convolutions and lookups in whole steps, and how many kernels a deep network's step has."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import small_step
import tvm
from contraction_cases import Window, aligned, random_array
from tvm import relax

from autotm import zoo
from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.source import ARCHITECTURES
from autotm.kernels.library import FatbinLibrary, KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.cuda import lower_for_gpu
from autotm.lower.lowering import lower_convolution, lower_network
from autotm.lower.step import whole_step
from autotm.memory.opening import open_tiers
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
from autotm.zoo.paper import densenet, resnet

RATE = 0.01


def network() -> Network:
    """A convolution in groups, one of each channel, and a classifier."""
    net = NetworkBuilder("groups", 4, RATE)
    x = net.input("images", (4, 9, 9, 6), Initial("normal"))
    x = net.conv(x, 24, 3, stride=2, padding=1, groups=3)
    x = net.conv(x, 24, 3, padding=1, groups=24)
    return net.softmax_cross_entropy(net.dense(net.global_mean(x), 10, relu=False))


def test_a_step_goes_down_the_gradient_and_its_file_says_where_schedules_come_from(tmp_path, objects):
    """To first order the loss falls by rate x the squared length of the gradient, whose steps the weights took."""
    net, path, library = network(), tmp_path / "graph.json", tmp_path / "kernels.so"
    graph = lower_network(net, "test", host_target(2), 2, path, library, {}, objects)
    kinds = schedules_in(load_with_provenance(path, "graph", Graph)[1])
    assert set(kinds) == {kernel.function for kernel in graph.kernels}
    assert {kinds[kernel.function] for kernel in graph.kernels if kernel.op == "conv2d"} == {ScheduleKind.GENERATED}
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
    data, weight = (random_array(operand.shape, seed) for seed, operand in enumerate(kernel.inputs))
    others = [aligned(operand.shape) for operand in kernel.outputs + kernel.workspaces]
    KernelLibrary.load(library).bind(kernel.function, [data, weight, *others])()
    exact = Window(data.shape, weight.shape, (1, 1), (1, 1, 1, 1)).forward(data, weight)
    np.testing.assert_allclose(others[0], exact, rtol=1e-4, atol=1e-4)


def test_its_profile_has_every_placement(tmp_path: Path) -> None:
    machine = small_step.machine()
    paths = ConvolutionPaths(tmp_path, machine, "test")
    save(paths.links, "links", small_step.links(), {})
    convolution = KernelPlotConfig(image=IMAGE, channels=CHANNELS)
    convolution_profile_stage(Context(machine, small_step.DEVICES, 20), convolution, BATCH, QUICK, paths)
    table = table_of_convolution(paths.graph, paths.profile)
    assert len(table.drop_duplicates(list(OPERANDS))) == 8
    assert (table["median_ns"] > 0).all()
    assert table["relative"].iloc[0] == 1.0
    assert table["time"].tolist() == ["measured", *["emulated"] * 7]
    assert table["weight_shape"].iloc[0] == f"3x3x{CHANNELS}x{CHANNELS}"
    step = load(paths.graph, "graph", Graph)
    assert {tensor.role for tensor in step.tensors} >= {Role.INPUT, Role.PARAMETER, Role.RESULT}


# Tables that are only looked up in are updated row by row; others get a whole gradient.

ROWS, WIDTH, SAMPLES = 11, 8, 6
LOOKUP_RATE = 0.5


def lookup_network(kind: str) -> Network:
    """A loss of what is looked up: once, twice, with many indices a sample, or with a penalty on the whole table."""
    net = NetworkBuilder("lookups", SAMPLES, LOOKUP_RATE)
    table = net.parameter("table", (ROWS, WIDTH), Initial("normal"))
    shape = (SAMPLES, 3) if kind == "many" else (SAMPLES,)
    first = net.embedding(table, net.input("first", shape, Initial("integers", ROWS), "int32"))
    x = net.flatten(first) if kind == "many" else first
    if kind in {"twice", "side_by_side", "tables"}:
        other = net.parameter("table", (ROWS, WIDTH), Initial("normal")) if kind == "tables" else table
        second = net.embedding(other, net.input("second", shape, Initial("integers", ROWS), "int32"))
        x = net.emit(relax.op.multiply(x, second)) if kind == "twice" else net.concat([x, second])
    if kind == "whole":
        x = net.emit(relax.op.matmul(x, net.emit(relax.op.permute_dims(table))))
    return net.softmax_cross_entropy(x)


def operators(module: tvm.IRModule) -> list[str]:
    bindings = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [value.op.name for value in bindings if isinstance(value, tvm.ir.Call)]


def lowered(kind: str, folder: Path, objects: Path) -> tuple[Graph, KernelLibrary]:
    path = folder / "kernels.so"
    graph = lower_network(lookup_network(kind), "test", host_target(2), 2, folder / "graph.json", path, {}, objects)
    return graph, KernelLibrary.load(path)


def test_tables_that_read_one_slope_are_updated_by_one_kernel(tmp_path, objects):
    graph, _ = lowered("tables", tmp_path, objects)
    (update,) = [kernel for kernel in graph.kernels if kernel.op == "embedding_update"]
    assert [graph.by_name[item.tensor].alias_of for item in update.outputs] == ["table_0", "table_1"]
    assert [item.tensor for item in update.inputs[:2]] == ["table_0", "table_1"]
    assert len(update.inputs) == 2 + 1 + 2, "both tables, one slope, two sets of indices"


def test_clipped_indices_are_refused():
    net = NetworkBuilder("clipped", SAMPLES, LOOKUP_RATE)
    table = net.parameter("table", (ROWS, WIDTH), Initial("normal"))
    indices = net.input("first", (SAMPLES,), Initial("integers", 2 * ROWS), "int32")
    x = net.emit(relax.op.take(table, indices, axis=0, mode="clip"))
    with pytest.raises(AutotmError, match=r"network clipped: relax\.take: .* mode 'clip'"):
        whole_step(net.softmax_cross_entropy(x))


def loss(kind: str, table: np.ndarray, first: np.ndarray, second: np.ndarray | None, labels: np.ndarray) -> float:
    """The network in float64."""
    x = table[first].reshape(SAMPLES, -1)
    if kind == "twice":
        x = x * table[second]
    if kind == "side_by_side":
        x = np.concatenate([x, table[second]], 1)
    if kind == "whole":
        x = x @ table.T
    return -float(np.sum(labels * (x - np.log(np.exp(x).sum(1, keepdims=True))))) / SAMPLES


@pytest.mark.parametrize(
    ("kind", "indices"),
    [
        ("once", ["first"]), ("twice", ["first", "second"]), ("many", ["first"]), ("side_by_side", ["first", "second"]),
        ("whole", []),
    ],
)  # fmt: skip
def test_one_kernel_updates_the_table_where_it_is_by_its_whole_gradient(kind, indices, tmp_path, objects):
    """A table that is also multiplied has a gradient as large as itself; others have none."""
    is_whole = "relax.grad.take_backward" in operators(whole_step(lookup_network(kind)).module)
    graph, library = lowered(kind, tmp_path, objects)
    updates = [kernel for kernel in graph.kernels if kernel.op == "embedding_update"]
    assert (is_whole, len(updates)) == ((True, 0) if kind == "whole" else (False, 1))
    for update in updates:
        assert sorted(item.tensor for item in update.inputs if item.tensor in {"first", "second"}) == indices
        (result,) = update.outputs
        assert graph.by_name[result.tensor].alias_of == update.inputs[0].tensor == "table_0"
        assert not [t.name for t in graph.movable if t.shape == (ROWS, WIDTH)], "a gradient as large as the table"
        assert graph.kernels.index(update) > max(graph.by_name["table_0"].readers[:-1])
    if kind == "side_by_side":
        # The gradient of the concatenation is not cut into one piece per lookup first; nor are lookups copied.
        ops = [kernel.op for kernel in graph.kernels]
        assert ops.count("embedding_concat") == 1
        assert not {"copy", "concat", "embedding"} & set(ops)
    arguments = Arguments.allocate(graph)
    arguments.fill(3)
    operands = [arguments.value(name).copy() if name in graph.by_name else None for name in ("first", "second")]
    labels = arguments.value("labels").copy()
    table = arguments.value("table_0").astype(np.float64)
    slope = np.empty_like(table)
    for index in np.ndindex(*table.shape):
        ends = []
        for change in (1e-5, -1e-5):
            moved = table.copy()
            moved[index] += change
            ends.append(loss(kind, moved, *operands, labels))
        slope[index] = (ends[0] - ends[1]) / 2e-5
    program = plain_program(graph)
    with open_tiers(small_step.machine(), None, program.fast_bytes, 0, small_step.DEVICES, stretch=1.0) as tiers:
        prepare(graph, library, program, arguments, tiers).step()
    np.testing.assert_allclose(arguments.value("loss"), loss(kind, table, *operands, labels), rtol=1e-5)
    np.testing.assert_allclose(arguments.value("table_0"), table - LOOKUP_RATE * slope, rtol=1e-5, atol=1e-6)


# The deepest networks' steps have no more kernels than AutoTM's own graphs of them.


def functions(network: zoo.Network) -> list[str]:
    """The fused function of each call, named after the operators in it."""
    calls, _ = extract_calls(fused_kernels(whole_step(network).module, host_target(2)))
    return [call.function for call in calls]


@pytest.mark.parametrize(
    ("build", "depths", "most"), [(resnet, (3, 24, 36, 3), 2233), (densenet, (6, 12, 64, 48), 3176)]
)
def test_blocks_of_a_deep_network_add_no_more_kernels_than_the_originals(build, depths, most):
    """ResNet-200 and DenseNet-264 repeat blocks: what one more in each stage adds tells how many kernels they have."""
    least, more = (len(functions(build("deep", 2, 32, (count,) * len(depths)))) for count in (1, 2))
    assert least + (sum(depths) - len(depths)) * (more - least) / len(depths) <= most


@pytest.mark.parametrize("build", [resnet, densenet])
def test_batch_norm_is_two_kernels_each_way(build):
    network = build("small", 2, 32, (1, 1))
    norms = sum(name.startswith("norm_scale") for name in network.parameters)
    names = [name for name in functions(network) if "conv2d" not in name]
    for kind in ("statistics", "normalise", "gradient_sums", "data_gradient"):
        assert sum(name.count(kind) for name in names) == norms, kind
    assert not any(name.startswith(("relu", "fused_relu", "add", "fused_add")) for name in names)


# A step lowered for GPUs is two files: the graph, and its kernels as a fatbin with their launches.


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_every_kernel_of_the_graph_has_launches(tmp_path: Path) -> None:
    network = zoo.build("mlp", {"batch": 16, "width": 64})
    graph = lower_for_gpu(network, "tiny", device_named("h100"), tmp_path / "graph.json", tmp_path / "kernels.zip", {})
    library = FatbinLibrary.load(tmp_path / "kernels.zip")
    assert load(tmp_path / "graph.json", "graph", Graph) == graph
    assert library.architectures == ARCHITECTURES
    assert library.image[:4] == b"\x50\xed\x55\xba", "a fatbin's first bytes"
    for kernel in graph.kernels:
        for launch in library.launches[kernel.function]:
            assert launch.function.encode() in library.image
            assert max(launch.arguments) < len(kernel.operands)
