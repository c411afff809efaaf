"""Every function finds a schedule that computes the same."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from compiled_kernels import call, fused, kernel_of, placeholders
from tvm import relax, te, tirx, topi

from autotm.kernels import windowed
from autotm.kernels.contractions import matmul
from autotm.kernels.schedules import dispatch
from autotm.model.graph import SCHEDULES_KEY, OpClass, ScheduleKind, schedules_in


@pytest.fixture(autouse=True)
def no_fallback(caplog):
    """Every function here must get a schedule of its own."""
    yield
    messages = [record.getMessage() for record in caplog.get_records("call")]
    assert not [message for message in messages if message.startswith("no schedule")]


@pytest.mark.parametrize("classes", [10, 1000, 1009])
def test_softmax_as_relax_writes_it(classes):
    (function,) = fused(lambda _, x: relax.op.nn.softmax(x), {"x": (8, classes)})
    values = np.random.default_rng(1).normal(size=(8, classes)).astype("float32") * 5
    kernel = kernel_of(function)
    powers = np.exp(values.astype("float64") - values.max(1, keepdims=True))
    np.testing.assert_allclose(call(kernel, [values])[0], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert (kernel.op, kernel.op_class) == ("softmax_chain", OpClass.REDUCTION)


def test_cross_entropy():
    def build(builder, x, y):
        return relax.op.mean(builder.emit(relax.op.multiply(builder.emit(relax.op.nn.log_softmax(x)), y)))

    random = np.random.default_rng(2)
    values, labels = (random.random((8, 1000), "float32") for _ in range(2))
    result = values
    for function in fused(build, {"x": (8, 1000), "y": (8, 1000)}):
        result = call(kernel_of(function), [result, labels][: len(function.params) - 1])[0]
    logs = values - np.log(np.exp(values.astype("float64")).sum(1, keepdims=True))
    np.testing.assert_allclose(result, (logs * labels).mean(), rtol=1e-5)


def scale(tensor, values, _axis):
    return te.compute(tensor.shape, lambda *i: tensor(*i) * 0.5 + 1.0, name="scale"), values * 0.5 + 1


def exponential(tensor, values, _axis):
    return te.compute(tensor.shape, lambda *i: te.exp(tensor(*i) * -1.0), name="exponential"), np.exp(-values)


def total(tensor, values, axis):
    term = te.reduce_axis((0, int(tensor.shape[axis])), "term")
    shape = [1 if a == axis else extent for a, extent in enumerate(tensor.shape)]

    def body(*i):
        return te.sum(tensor(*i[:axis], term, *i[axis + 1 :]), axis=term)

    return te.compute(shape, body, name="total"), values.sum(axis, keepdims=True)


def share(tensor, values, axis):
    sums, summed = total(tensor, values, axis)
    body = lambda *i: tensor(*i) / sums(*i[:axis], 0, *i[axis + 1 :])  # noqa: E731
    return te.compute(tensor.shape, body, name="share"), values / summed


def pool(tensor, values, _axis):
    height, width = (int(extent) - 1 for extent in tensor.shape[1:3])
    if min(height, width) < 1:
        return tensor, values
    views = [values[:, h : h + height, w : w + width] for h in (0, 1) for w in (0, 1)]
    return windowed.max_pool2d(tensor, (2, 2), (1, 1), (0, 0, 0, 0)), np.max(views, axis=0)


def cut(tensor, values, axis):
    extent = int(tensor.shape[axis])
    return topi.strided_slice(tensor, [extent // 2], [extent], [1], [axis]), np.split(values, [extent // 2], axis)[1]


QUICK_SEEDS = (0, 1, 2, 9, 17, 21, 23, 26, 29, 31, 34, 39)
"""Seeds whose graphs together have every pair of successive steps that the graphs of all 40 seeds have."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in QUICK_SEEDS else pytest.mark.slow) for seed in range(40)]
)
def test_any_graph_gets_a_correct_schedule(seed):
    random = np.random.default_rng(seed)
    shape = tuple(int(extent) for extent in random.choice([1, 2, 3, 5, 8, 16, 19, 64], size=4))
    values = random.random(shape, "float32")
    x = te.placeholder(shape, name="x")
    tensor, expected = scale(x, values.astype("float64"), 0)
    for _ in range(int(random.integers(0, 5))):
        step = random.choice([scale, exponential, total, share, pool, cut])
        tensor, expected = step(tensor, expected, int(random.integers(4)))
    np.testing.assert_allclose(call(kernel_of([x, tensor]), [values])[0], expected, rtol=1e-4, atol=1e-6)


def test_a_function_that_no_rule_can_schedule_still_runs_as_written(monkeypatch, caplog):
    def refuse(*_):
        raise ValueError("a trace of TVM's\nno rule")

    monkeypatch.setattr(dispatch, "schedule_blocks", refuse)
    monkeypatch.setitem(dispatch._GENERATED, "matmul", refuse)
    with caplog.at_level(logging.WARNING):
        kernels = [kernel_of(function) for function in functions()]
    assert caplog.text.count("no rule") == 2
    assert "a trace" not in caplog.text
    caplog.clear()
    assert {kernel.kind for kernel in kernels} == {ScheduleKind.AS_WRITTEN}
    values = np.ones((8, 16), "float32")
    np.testing.assert_array_equal(call(kernels[1], [values])[0], 2 * values)


def functions() -> list[list[te.Tensor]]:
    """A product of matrices, and a map."""
    x, w = placeholders((8, 16), (16, 32))
    return [[x, w, matmul(x, w)], [x, te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="doubled")]]


def test_a_reduction_is_not_named_after_a_variable(caplog) -> None:
    either = te.comm_reducer(lambda a, b: a | b, lambda dtype: tirx.const(0, dtype))
    x = te.placeholder((8, 16), "int32", name="x")
    term = te.reduce_axis((0, 16), "term")
    kernel = kernel_of([x, te.compute((8,), lambda i: either(x[i, term], axis=term), name="mask_of_row")])
    caplog.clear()  # TVM splits no reduction that it does not know.
    assert (kernel.op, kernel.op_class) == ("reduction", OpClass.REDUCTION)


def test_generated_code_and_general_rules_are_told_apart() -> None:
    product, doubled = map(kernel_of, functions())
    assert (product.op, product.op_class, product.flops) == ("matmul", OpClass.MATMUL, 2 * 8 * 16 * 32)
    assert doubled.flops == 8 * 16
    assert (product.kind, doubled.kind) == (ScheduleKind.GENERATED, ScheduleKind.GENERAL)


def test_files_from_before_name_no_kinds() -> None:
    assert schedules_in({}) == {}
    assert schedules_in({SCHEDULES_KEY: {"f": "as written"}}) == {"f": ScheduleKind.AS_WRITTEN}
