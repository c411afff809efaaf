"""Pooling and its gradients compute what NumPy does, fused with what is before and after."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import call, kernel_of, placeholders
from memory_bound_cases import POOLS
from tvm import te

from autotm.kernels import windowed
from autotm.kernels.windowed import Axis
from autotm.model.graph import OpClass


def positions(shape, pool, stride, padding):
    """For each window: its output index and the (h, w) inside the image, in row-major order."""
    _, height, width, _ = shape
    top, left, bottom, right = padding
    for i in range((height + top + bottom - pool[0]) // stride[0] + 1):
        for j in range((width + left + right - pool[1]) // stride[1] + 1):
            rows = range(i * stride[0] - top, i * stride[0] - top + pool[0])
            columns = range(j * stride[1] - left, j * stride[1] - left + pool[1])
            yield i, j, [(h, w) for h in rows for w in columns if 0 <= h < height and 0 <= w < width]


def output_shape(shape, *geometry):
    last = list(positions(shape, *geometry))[-1]
    return shape[0], last[0] + 1, last[1] + 1, shape[3]


def values(shape, seed):
    """Few distinct values, so that windows have ties."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("float32")


def each_other_pool(first):
    """Quick are those: gradients of both pools visit windows in the same way."""
    cases = [
        pytest.param(*case, marks=() if number % 2 == first else pytest.mark.slow) for number, case in enumerate(POOLS)
    ]
    return pytest.mark.parametrize(("shape", "pool", "stride", "padding"), cases)


@pytest.mark.parametrize(("shape", "pool", "stride", "padding"), POOLS)
def test_max_pool(shape, pool, stride, padding):
    x = values(shape, 0)
    expected = np.empty(output_shape(shape, pool, stride, padding), "float32")
    for i, j, inside in positions(shape, pool, stride, padding):
        expected[:, i, j] = np.max([x[:, h, w] for h, w in inside], axis=0)
    (argument,) = placeholders(shape)
    kernel = kernel_of([argument, windowed.max_pool2d(argument, pool, stride, padding)])
    assert kernel.op_class == OpClass.WINDOW
    np.testing.assert_array_equal(call(kernel, [x])[0], expected)


@each_other_pool(0)
def test_max_pool_gradient_goes_to_the_first_maximum(shape, pool, stride, padding):
    x = values(shape, 1)
    pooled = output_shape(shape, pool, stride, padding)
    dy = np.random.default_rng(2).random(pooled, "float32")
    y = np.empty(pooled, "float32")
    expected = np.zeros(shape)
    for i, j, inside in positions(shape, pool, stride, padding):
        window_values = np.array([x[:, h, w] for h, w in inside])
        y[:, i, j] = window_values.max(axis=0)
        first = window_values.argmax(axis=0)
        for place, (h, w) in enumerate(inside):
            expected[:, h, w] += np.where(first == place, dy[:, i, j], 0)
    arguments = placeholders(shape, pooled, pooled)
    kernel = kernel_of([*arguments, windowed.max_pool2d_gradient(*arguments, pool, stride, padding)])
    assert kernel.op_class == OpClass.WINDOW_GRADIENT
    np.testing.assert_allclose(call(kernel, [x, y, dy])[0], expected, rtol=1e-5, atol=1e-6)


@each_other_pool(1)
def test_avg_pool_and_gradient(shape, pool, stride, padding):
    x = np.random.default_rng(3).random(shape, "float32")
    pooled = output_shape(shape, pool, stride, padding)
    dy = np.random.default_rng(4).random(pooled, "float32")
    mean, gradient = np.empty(pooled), np.zeros(shape)
    for i, j, inside in positions(shape, pool, stride, padding):
        mean[:, i, j] = np.mean([x[:, h, w] for h, w in inside], axis=0, dtype="float64")
        for h, w in inside:
            gradient[:, h, w] += dy[:, i, j] / len(inside)
    (argument,) = placeholders(shape)
    forward = kernel_of([argument, windowed.avg_pool2d(argument, pool, stride, padding)])
    np.testing.assert_allclose(call(forward, [x])[0], mean, rtol=1e-5)
    (argument,) = placeholders(pooled)
    backward = kernel_of([argument, windowed.avg_pool2d_gradient(argument, shape, pool, stride, padding)])
    np.testing.assert_allclose(call(backward, [dy])[0], gradient, rtol=1e-5, atol=1e-6)


def test_window_fuses_with_what_is_before_and_after():
    shape, geometry = (2, 9, 9, 48), ((3, 3), (2, 2), (0, 0, 0, 0))
    (argument,) = placeholders(shape)
    before = te.compute(shape, lambda *i: argument(*i) * 2.0, name="twice")
    pooled = windowed.max_pool2d(before, *geometry)
    after = te.compute(pooled.shape, lambda *i: pooled(*i) + 1.0, name="one_more")
    x = values(shape, 5)
    expected = np.empty(output_shape(shape, *geometry), "float32")
    for i, j, inside in positions(shape, *geometry):
        expected[:, i, j] = np.max([2 * x[:, h, w] for h, w in inside], axis=0) + 1
    kernel = kernel_of([argument, after])
    assert kernel.workspaces == ()
    np.testing.assert_array_equal(call(kernel, [x])[0], expected)


@pytest.mark.parametrize("axis", [(4, 3, 2, 3, 0), (2, 3, 1, 0, 0)])
def test_impossible_windows_are_refused(axis):
    with pytest.raises(ValueError, match="window"):
        Axis(*axis)
