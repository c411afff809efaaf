"""Tables that are only looked up in are updated row by row; others get a whole gradient."""

from __future__ import annotations

import numpy as np
import pytest
import small_step
import tvm
from tvm import relax

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_network
from autotm.lower.step import whole_step
from autotm.memory.tiers import open_tiers
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, Initial
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.verify import plain_program
from autotm.zoo import Network, NetworkBuilder

ROWS, WIDTH, BATCH = 11, 8, 6
RATE = 0.5


def network(kind: str) -> Network:
    """A loss of what is looked up: once, twice, with many indices a sample, or with a penalty on the whole table."""
    net = NetworkBuilder("lookups", BATCH, RATE)
    table = net.parameter("table", (ROWS, WIDTH), Initial("normal"))
    shape = (BATCH, 3) if kind == "many" else (BATCH,)
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


def lowered(kind: str, folder, objects) -> tuple[Network, Graph, KernelLibrary]:
    net = network(kind)
    path = folder / "kernels.so"
    graph = lower_network(net, "test", host_target(2), 2, folder / "graph.json", path, {}, objects)
    return net, graph, KernelLibrary.load(path)


@pytest.mark.parametrize(
    ("kind", "operands"),
    [("once", ["first"]), ("twice", ["first", "second"]), ("many", ["first"]), ("side_by_side", ["first", "second"])],
)
def test_one_kernel_updates_the_table_where_it_is(kind, operands, tmp_path, objects):
    assert "relax.grad.take_backward" not in operators(whole_step(network(kind)).module)
    net, graph, _ = lowered(kind, tmp_path, objects)
    updates = [kernel for kernel in graph.kernels if kernel.op == "embedding_update"]
    assert len(updates) == 1
    assert sorted(item.tensor for item in updates[0].inputs if item.tensor in net.inputs) == operands
    (result,) = updates[0].outputs
    assert graph.by_name[result.tensor].alias_of == updates[0].inputs[0].tensor == "table_0"
    assert not [t.name for t in graph.movable if t.shape == (ROWS, WIDTH)], "a gradient as large as the table"
    assert graph.kernels.index(updates[0]) > max(graph.by_name["table_0"].readers[:-1])


def test_slopes_are_read_where_they_are(tmp_path, objects):
    """The gradient of the concatenation is not cut into one piece per lookup first; nor are lookups copied."""
    _, graph, _ = lowered("side_by_side", tmp_path, objects)
    ops = [kernel.op for kernel in graph.kernels]
    assert ops.count("embedding_concat") == 1
    assert not {"copy", "concat", "embedding"} & set(ops)


def test_tables_that_read_one_slope_are_updated_by_one_kernel(tmp_path, objects):
    _, graph, _ = lowered("tables", tmp_path, objects)
    (update,) = [kernel for kernel in graph.kernels if kernel.op == "embedding_update"]
    assert [graph.by_name[item.tensor].alias_of for item in update.outputs] == ["table_0", "table_1"]
    assert [item.tensor for item in update.inputs[:2]] == ["table_0", "table_1"]
    assert len(update.inputs) == 2 + 1 + 2, "both tables, one slope, two sets of indices"


def test_a_table_that_is_also_multiplied_keeps_its_whole_gradient(tmp_path, objects):
    assert "relax.grad.take_backward" in operators(whole_step(network("whole")).module)
    _, graph, _ = lowered("whole", tmp_path, objects)
    assert "embedding_update" not in [kernel.op for kernel in graph.kernels]


def test_clipped_indices_are_refused():
    net = NetworkBuilder("clipped", BATCH, RATE)
    table = net.parameter("table", (ROWS, WIDTH), Initial("normal"))
    indices = net.input("first", (BATCH,), Initial("integers", 2 * ROWS), "int32")
    x = net.emit(relax.op.take(table, indices, axis=0, mode="clip"))
    with pytest.raises(AutotmError, match=r"network clipped: relax\.take: .* mode 'clip'"):
        whole_step(net.softmax_cross_entropy(x))


def loss(kind: str, table: np.ndarray, first: np.ndarray, second: np.ndarray | None, labels: np.ndarray) -> float:
    """The network in float64."""
    x = table[first].reshape(BATCH, -1)
    if kind == "twice":
        x = x * table[second]
    if kind == "side_by_side":
        x = np.concatenate([x, table[second]], 1)
    if kind == "whole":
        x = x @ table.T
    return -float(np.sum(labels * (x - np.log(np.exp(x).sum(1, keepdims=True))))) / BATCH


@pytest.mark.parametrize("kind", ["once", "twice", "many", "side_by_side", "whole"])
def test_the_updated_table_is_that_of_the_whole_gradient(kind, tmp_path, objects):
    _, graph, library = lowered(kind, tmp_path, objects)
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
    np.testing.assert_allclose(arguments.value("table_0"), table - RATE * slope, rtol=1e-5, atol=1e-6)
