"""Steps of networks that are not trained: nothing is differentiated or updated, every output is a result."""

from __future__ import annotations

import dataclasses

import numpy as np
import plain_steps
import pytest
import small_step
from tvm import relax

import autotm
from autotm.model.errors import AutotmError
from autotm.model.graph import Role

op = relax.op
Builder = relax.BlockBuilder
Var = relax.Var
FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}


def layers(b: Builder, x: Var, w: Var, v: Var) -> relax.Expr:
    hidden = b.emit(op.nn.relu(b.emit(op.matmul(x, w))))
    return b.emit(op.matmul(hidden, v))


def several(b: Builder, x: Var, w: Var, v: Var) -> list[relax.Expr]:
    """Also views, an argument, one output twice, and one that others are made of."""
    hidden = b.emit(op.nn.relu(b.emit(op.matmul(x, w))))
    last = b.emit(op.matmul(hidden, v))
    return [last, hidden, b.emit(op.reshape(hidden, (8, 32))), w, last]


def network(body: plain_steps.Body) -> autotm.Network:
    return plain_steps.network(body, {"x": (16, 16)}, {"w": (16, 16), "v": (16, 4)})


def test_the_output_is_the_only_result(tmp_path) -> None:
    steps = plain_steps.compiled(network(layers), tmp_path).run(1)
    assert {tensor.name for tensor in steps.graph.tensors if tensor.role is Role.RESULT} == {"output"}
    assert {tensor.name for tensor in steps.graph.tensors if tensor.role is Role.PARAMETER} == {"w", "v"}
    x, w, v = (steps.start[name].astype(np.float64) for name in "xwv")
    np.testing.assert_allclose(steps.after[0]["output"], np.maximum(x @ w, 0) @ v, rtol=1e-4, atol=1e-5)
    for name in ("x", "w", "v"):
        np.testing.assert_array_equal(steps.after[0][name], steps.start[name])


def test_each_of_several_outputs_has_memory_and_shape_of_its_own(tmp_path) -> None:
    steps = plain_steps.compiled(network(several), tmp_path).run(2)
    x, w, v = (steps.start[name].astype(np.float64) for name in "xwv")
    hidden = np.maximum(x @ w, 0)
    for number, value in enumerate([hidden @ v, hidden, hidden.reshape(8, 32), w, hidden @ v]):
        found = steps.after[-1][f"output.{number}"]
        assert found.shape == value.shape
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def test_a_state_may_be_replaced_too(tmp_path) -> None:
    def summed(b: Builder, x: Var, total: Var) -> list[relax.Expr]:
        return [b.emit(op.nn.relu(x)), b.emit(op.add(total, x))]

    net = plain_steps.network(summed, {"x": (30,)}, {}, {"total": (30,)})
    steps = plain_steps.compiled(net, tmp_path).run(2)
    np.testing.assert_allclose(steps.after[1]["total"], steps.start["total"] + 2 * steps.start["x"], rtol=1e-5)
    np.testing.assert_array_equal(steps.after[1]["output"], np.maximum(steps.start["x"], 0))


def test_it_is_planned_and_run_as_a_training_step_is(results) -> None:
    net = dataclasses.replace(network(several), name="several")
    step = autotm.prepare(net, machine=small_step.machine(), profile=FAST, results=results)
    for optimizer, limit in (("static", "1:1"), ("synchronous", "1:2"), ("numa", "1:1"), ("memory-mode", "1:1")):
        placed = step.plan(limit, optimizer)
        assert placed.run(min_seconds=0.0, patience_s=0.05, verify_steps=2).verified_steps == 2


def test_what_has_no_kernel_is_named() -> None:
    from autotm.kernels.target import host_target
    from autotm.lower.lowering import scheduled_step

    def without_shift(b: Builder, x: Var, w: Var) -> relax.Expr:
        return b.emit(op.nn.group_norm(x, w, w, 2, 3, [1, 2], center=False))

    net = plain_steps.network(without_shift, {"x": (1, 9, 9, 4)}, {"w": (4,)})
    with pytest.raises(AutotmError, match=r"network test: .*scale and shift only"):
        scheduled_step(net, "test", host_target(2), 2)
