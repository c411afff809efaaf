"""Vectors are updated in groups, each by its own gradient."""

from __future__ import annotations

import numpy as np
import tvm
from compiled_kernels import call
from tvm import relax

from autotm.kernels.schedules.dispatch import schedule
from autotm.kernels.target import host_target
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.step import whole_step
from autotm.lower.update_formulas import TOGETHER
from autotm.lower.updates import append_updates
from autotm.model.graph import OpClass
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
