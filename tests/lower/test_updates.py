"""Updates: vectors in groups, each by its own gradient; early, and never before a reader of the old parameter."""

from __future__ import annotations

import numpy as np
import tvm
from compiled_kernels import call
from tvm import relax

from autotm.kernels.schedules.dispatch import schedule
from autotm.kernels.target import host_target
from autotm.lower.calls import Call, extract_calls, fused_kernels
from autotm.lower.results import early_updates
from autotm.lower.step import whole_step
from autotm.lower.update_formulas import TOGETHER
from autotm.lower.updates import append_updates
from autotm.model.graph import OpClass, Operand
from autotm.model.training import Sgd, Training
from autotm.zoo.paper import resnet


def test_results_keep_the_order_of_the_parameters():
    network = resnet("small", 2, 32, (1, 1))
    vectors = sum(len(var.ty.shape) == 1 for var in network.module["main"].params)
    calls, returned = extract_calls(fused_kernels(whole_step(network).module, host_target(2)))
    updates = [call for call in calls if "sgd_updates" in call.function]
    assert len(updates) == -(-vectors // TOGETHER)
    assert len({item.tensor for item in returned}) == 1 + len(network.parameters)
    parameters = {var.name: tuple(int(extent) for extent in var.ty.shape) for var in network.module["main"].params}
    assert [item.shape for item in returned[1:]] == [parameters[name] for name in network.parameters]


def test_every_vector_moves_against_its_gradient():
    sizes = [5, 64, 1000]
    vectors = [relax.Var(f"v{size}", relax.TensorType((size,), "float32")) for size in sizes]
    slopes = [relax.Var(f"d{size}", relax.TensorType((size,), "float32")) for size in sizes]
    builder = relax.BlockBuilder()
    append_updates(builder, vectors, slopes, Training(Sgd(0.25)), [])
    (function,) = [item for item in builder.get().functions.values() if isinstance(item, tvm.tirx.PrimFunc)]
    kernel = schedule(function, host_target(2), 2)
    assert (kernel.op, kernel.op_class, kernel.workspaces) == ("sgd_update", OpClass.ELEMENTWISE, ())
    random = np.random.default_rng(0)
    old, change = ([random.standard_normal(size, "float32") for size in reversed(sizes)] for _ in range(2))
    for new, before, slope in zip(call(kernel, [*old, *change]), old, change, strict=True):
        np.testing.assert_array_equal(new, before - np.float32(0.25) * slope)


def read(function: str, inputs: list[str], output: str) -> Call:
    return Call(function, tuple(Operand(name, (1,), "float32") for name in inputs), (Operand(output, (1,), "float32"),))


STEP = [
    read("forward", ["w", "x"], "y"),
    read("gradient", ["y", "x"], "g"),
    read("data_gradient", ["y", "w"], "dx"),
    read("use", ["dx"], "z"),
    read("more", ["z"], "zz"),
    read("update", ["w", "g"], "w_new"),
]


def test_update_follows_the_last_reader_of_its_parameter():
    order = [item.function for item in early_updates(STEP, {"w_new": "w"})]
    assert order == ["forward", "gradient", "data_gradient", "update", "use", "more"]


def test_without_updates_nothing_moves():
    assert early_updates(STEP, {}) == STEP


def test_updates_in_a_row_keep_their_order():
    step = [read("f", ["v", "w"], "y"), read("u", ["w", "y"], "w_new"), read("t", ["v", "y"], "v_new")]
    assert [item.function for item in early_updates(step, {"w_new": "w", "v_new": "v"})] == ["f", "u", "t"]


def test_what_would_have_to_come_before_itself_is_left_out():
    step = [read("f", ["x"], "y"), read("u", ["v", "w"], "v_new"), read("t", ["v", "w"], "w_new")]
    assert [item.function for item in early_updates(step, {"w_new": "w", "v_new": "v"})] == ["f"]
    assert [item.function for item in early_updates(step, {"v_new": "v"})] == ["f", "t", "u"]
