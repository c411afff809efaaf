"""What is limited by memory runs in one pass and computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from memory_bound_cases import CONCATS, SHAPES
from tvm import te, tirx, topi

from autotm.kernels.along_axis import concat
from autotm.kernels.target import PARALLEL_BYTES, Parallelism, divisor_near
from autotm.model.graph import OpClass


def values(shape, seed=0):
    return np.random.default_rng(seed).random(shape, "float32") - np.float32(0.5)


def placeholders(*shapes):
    return [te.placeholder(shape, name=f"p{index}") for index, shape in enumerate(shapes)]


def is_parallel(kernel):
    return "T.parallel" in kernel.func.script()


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_add_relu_mask_chain_is_one_pass(shape):
    x, b, dy = placeholders(shape, shape[-1:], shape)
    zero = tirx.const(0.0, "float32")
    biased = te.compute(shape, lambda *i: x(*i) + b(i[-1]), name="biased")
    positive = te.compute(shape, lambda *i: biased(*i) > zero, name="positive")
    masked = te.compute(shape, lambda *i: tirx.Select(positive(*i), dy(*i) * biased(*i), zero), name="masked")
    kernel = kernel_of([x, b, dy, masked])
    assert kernel.op_class == OpClass.ELEMENTWISE
    assert kernel.workspaces == ()
    assert is_parallel(kernel) == (3 * 4 * np.prod(shape) + 4 * shape[-1] >= PARALLEL_BYTES)
    operands = [values(shape), values(shape[-1:], 1), values(shape, 2)]
    sums = operands[0] + operands[1]
    np.testing.assert_array_equal(call(kernel, operands)[0], np.where(sums > 0, operands[2] * sums, 0))


def test_one_thread_asks_for_no_parallel_loop():
    (x,) = placeholders((64, 4096))
    double = te.compute(x.shape, lambda *i: x(*i) * 2.0, name="double")
    assert is_parallel(kernel_of([x, double], threads=2))
    assert not is_parallel(kernel_of([x, double], threads=1))


def test_a_transposed_read_and_a_broadcast_are_right():
    x, row = placeholders((37, 53), (37, 1))
    turned = te.compute((53, 37), lambda i, j: x[j, i] - row[j, 0], name="turned")
    operands = [values((37, 53)), values((37, 1), 1)]
    np.testing.assert_array_equal(call(kernel_of([x, row, turned]), operands)[0], (operands[0] - operands[1]).T)


def test_values_that_depend_on_the_index_are_right():
    (x,) = placeholders((12, 40))
    body = lambda i, j: tirx.if_then_else(j < i + 3, x[i, j], tirx.const(0.0, "float32"))  # noqa: E731
    data = values((12, 40))
    keep = np.arange(40) < np.arange(12)[:, None] + 3
    np.testing.assert_array_equal(call(kernel_of([x, te.compute((12, 40), body, name="band")]), [data])[0], data * keep)


def test_two_outputs_of_which_one_feeds_the_other():
    (x,) = placeholders((6, 50))
    first = te.compute(x.shape, lambda *i: x(*i) * 3.0, name="first")
    second = te.compute(x.shape, lambda *i: first(*i) + 1.0, name="second")
    data = values((6, 50))
    results = call(kernel_of([x, first, second]), [data])
    np.testing.assert_array_equal(results[0], data * 3)
    np.testing.assert_array_equal(results[1], data * 3 + 1)


@pytest.mark.parametrize(
    ("shapes", "axis"),
    CONCATS,
)
def test_concat(shapes, axis):
    arguments = placeholders(*shapes)
    kernel = kernel_of([*arguments, concat(arguments, axis)])
    assert kernel.op_class == OpClass.DATA_MOVEMENT
    assert kernel.op == "concat"
    assert "if_then_else" not in kernel.func.script()
    operands = [values(shape, seed) for seed, shape in enumerate(shapes)]
    np.testing.assert_array_equal(call(kernel, operands)[0], np.concatenate(operands, axis))


@pytest.mark.parametrize(("axis", "begin", "end"), [(3, 32, 65), (3, 0, 7), (1, 2, 5), (0, 1, 2)])
def test_slice_and_what_follows_are_one_pass(axis, begin, end):
    shape = (2, 6, 5, 97)
    (x,) = placeholders(shape)
    part = topi.strided_slice(x, [begin], [end], [1], [axis])
    data = values(shape)
    expected = np.take(data, range(begin, end), axis)
    assert kernel_of([x, part]).op_class == OpClass.DATA_MOVEMENT
    np.testing.assert_array_equal(call(kernel_of([x, part]), [data])[0], expected)
    double = te.compute(part.shape, lambda *i: part(*i) * 2.0, name="double")
    kernel = kernel_of([x, double])
    assert kernel.op_class == OpClass.ELEMENTWISE
    assert kernel.workspaces == ()
    np.testing.assert_array_equal(call(kernel, [data])[0], expected * 2)


def test_tiles_divide_and_fill_vectors():
    machine = Parallelism(threads=2, lanes=16)
    for extent in range(1, 400):
        tile = machine.tile(extent)
        if tile is not None:
            assert extent % tile == 0
            assert tile <= 64
            assert machine.vector(tile) >= min(extent, 8)
        if extent % 16 == 0:
            assert tile % 16 == 0
    assert machine.tile(384) == 64
    assert machine.tile(67) is None


def test_divisor_near():
    assert divisor_near(19600, 27) == 28
    assert divisor_near(13, 4) in (1, 13)
    assert all(extent % divisor_near(extent, 7) == 0 for extent in range(1, 200))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((40, 56), (1, 0)), ((3, 17, 33), (0, 2, 1)), ((2, 9, 5, 24), (0, 3, 1, 2)), ((64, 16, 2, 64), (2, 1, 3, 0))],
)
def test_transpositions_in_tiles(shape, axes):
    x = te.placeholder(shape, name="x")
    turned = te.compute([shape[axis] for axis in axes], lambda *at: x(*(at[axes.index(n)] for n in range(len(axes)))))
    values = np.random.default_rng(0).random(shape, "float32")
    np.testing.assert_array_equal(call(kernel_of([x, turned]), [values])[0], values.transpose(axes))
