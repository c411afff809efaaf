"""Schedules that a search found: replayed exactly, refused where they do not fit."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import tvm
from compiled_kernels import TARGET, call
from hand_schedule import by_hand, matmul_relu
from tvm import te

from autotm.kernels.compiler import (
    UnusableScheduleError,
    as_kernel,
    choose,
    compiled,
    identity,
    replay,
    workload,
    workspace_bytes,
)
from autotm.kernels.schedules.dispatch import schedule
from autotm.model.kernel_studies import TunedSchedule


def found(func, trace=None):
    own = schedule(func, TARGET, 2)
    return own, TunedSchedule(trace or by_hand(func), identity(own.func, TARGET))


def test_equal_functions_share_a_workload_and_others_do_not():
    assert workload(matmul_relu()) == workload(matmul_relu())
    others = [matmul_relu(rows=13), matmul_relu(depth=41), matmul_relu(columns=49)]
    assert len({workload(func) for func in (matmul_relu(), *others)}) == 4


def padded(before, after):
    x = te.placeholder((8, 8), name="x")
    wide = te.compute(
        (8, 10), lambda i, j: tvm.tirx.if_then_else(tvm.tirx.all(j >= before, j < 8 + before), x[i, j - before], 0.0)
    )
    return te.create_prim_func([x, te.compute((8, 8), lambda i, j: wide[i, j] + wide[i, j + after], name="sum")])


def test_padding_counts_where_all_shapes_are_equal():
    assert workload(padded(1, 1)) != workload(padded(2, 1))
    assert workload(padded(1, 1)) != workload(padded(1, 2))


def test_names_of_blocks_count_because_schedules_find_blocks_by_them():
    def named(name):
        x = te.placeholder((8, 8), name="x")
        return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name=name)])

    assert workload(named("one")) != workload(named("other"))


@pytest.mark.parametrize("shape", [(12, 40, 48), (13, 7, 5), (4, 300, 130)])
def test_a_replayed_schedule_computes_the_same_as_the_function(shape):
    func = matmul_relu(*shape)
    own, entry = found(func)
    kernel = replay(func, entry.trace, own)
    rows, depth, columns = shape
    draws = np.random.default_rng(0)
    a, b = draws.standard_normal((rows, depth), "float32"), draws.standard_normal((depth, columns), "float32")
    expected = np.maximum(a.astype("float64") @ b, 0)
    np.testing.assert_allclose(call(kernel, [a, b])[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(call(own, [a, b])[0], expected, rtol=1e-4, atol=1e-4)
    assert identity(kernel.func, TARGET) != identity(own.func, TARGET), "their timings must not mix"


def test_the_function_is_not_changed_by_replaying():
    func = matmul_relu()
    before = func.script()
    for _ in range(2):
        replay(func, by_hand(func), schedule(func, TARGET, 2))
    assert func.script() == before


def test_inner_buffers_become_workspaces():
    func = matmul_relu(64, 8, 128)
    own, entry = found(func)
    kernel = replay(func, entry.trace, own)
    assert workspace_bytes(kernel) == 64 * 128 * 4, "4 rows of the product for each of 16 pieces"
    compiled(kernel, TARGET)


def test_code_that_allocates_is_refused():
    x = te.placeholder((8, 1000), name="x")
    kept = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="kept")
    k = te.reduce_axis((0, 1000), "k")
    func = te.create_prim_func([x, te.compute((8,), lambda i: te.sum(kept[i, k], axis=k), name="total")])
    own = schedule(func, TARGET, 2)
    with pytest.raises(UnusableScheduleError, match="allocates"):
        compiled(type(own)(func, (), own.op, own.op_class, own.flops), TARGET)


def test_too_much_workspace_is_refused():
    x = te.placeholder((64,), name="x")
    table = te.compute((64, 300), lambda i, j: te.exp(x[i] * j), name="table")
    k = te.reduce_axis((0, 300), "k")
    func = te.create_prim_func([x, te.compute((64,), lambda i: te.sum(table[i, k], axis=k), name="total")])
    own = schedule(func, TARGET, 2)
    with pytest.raises(UnusableScheduleError, match="workspace"):
        as_kernel(func, own)


def test_what_was_found_is_chosen():
    func = matmul_relu()
    own, entry = found(func)
    assert choose(func, own, None, TARGET) is own
    chosen = choose(func, own, entry, TARGET)
    assert identity(chosen.func, TARGET) == identity(replay(func, entry.trace, own).func, TARGET)
    assert (chosen.op, chosen.op_class, chosen.flops) == (own.op, own.op_class, own.flops)


def test_what_was_measured_beside_another_schedule_of_ours_is_not_chosen(caplog):
    func = matmul_relu()
    own, entry = found(func)
    with caplog.at_level(logging.INFO):
        assert choose(func, own, TunedSchedule(entry.trace, "another"), TARGET) is own
    assert "tune it again" in caplog.text


@pytest.mark.parametrize("trace", ["[[]", "[]", by_hand(matmul_relu()).replace("relu", "tanh")])
def test_steps_that_do_not_fit_are_not_chosen(trace, caplog):
    func = matmul_relu()
    own, entry = found(func, trace)
    with caplog.at_level(logging.WARNING):
        assert choose(func, own, entry, TARGET) is own
    assert "cannot be used" in caplog.text


def test_steps_are_plain_json():
    steps, decisions = json.loads(by_hand(matmul_relu()))
    assert steps[0][0] == "GetSBlock"
    assert isinstance(decisions, list)
