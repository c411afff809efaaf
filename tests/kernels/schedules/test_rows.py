"""Kernels that work row by row, against NumPy in float64: any width, several thread counts."""

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from tvm import te, tirx

from autotm.kernels import normalization
from autotm.kernels.schedules.rows import exponential
from autotm.model.graph import OpClass

SHAPES = [(3, 5, 64), (7, 150), (2, 3), (4, 1), (33, 2011)]
THREADS = [1, 2, 3]
EPSILON = 1e-5
MASKED = -1e9


IN_THREADS = pytest.mark.parametrize(
    ("shape", "threads"),
    [
        # Each shape is quick on one number of threads, and each number with one shape at least.
        pytest.param(shape, threads, marks=() if (row + column) % len(THREADS) == 0 else pytest.mark.slow)
        for row, shape in enumerate(SHAPES)
        for column, threads in enumerate(THREADS)
    ],
)


def random(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(function, arrays, threads, *arguments):
    """The kernel, and what it returns."""
    tensors = [te.placeholder(array.shape, name=f"p{index}") for index, array in enumerate(arrays)]
    results = function(*tensors, *arguments)
    kernel = kernel_of([*tensors, *(results if isinstance(results, list) else [results])], threads)
    return kernel, call(kernel, arrays)


def exact_softmax(x):
    shifted = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


@IN_THREADS
def test_softmax_and_gradient(shape, threads):
    x = 4 * random(shape, 0)
    x[..., 1::3] = MASKED
    kernel, (y,) = run(normalization.softmax, [x], threads)
    assert (kernel.op, kernel.op_class) == ("softmax", OpClass.NORMALIZATION)
    np.testing.assert_allclose(y, exact_softmax(x), rtol=1e-6, atol=1e-12)
    assert not y[..., 1::3].any()
    dy = random(shape, 1)
    kernel, (dx,) = run(normalization.softmax_gradient, [y, dy], threads)
    assert (kernel.op, kernel.op_class) == ("softmax_gradient", OpClass.NORMALIZATION_GRADIENT)
    wide = y.astype(np.float64)
    np.testing.assert_allclose(dx, wide * (dy - (wide * dy).sum(-1, keepdims=True)), rtol=2e-6, atol=2e-7)


@IN_THREADS
def test_log_softmax_and_gradient(shape, threads):
    x = 4 * random(shape, 2)
    kernel, (y,) = run(normalization.log_softmax, [x], threads)
    assert (kernel.op, kernel.workspaces) == ("log_softmax", ())
    np.testing.assert_allclose(y, np.log(exact_softmax(x)), rtol=2e-6, atol=2e-6)
    dy = random(shape, 3)
    kernel, (dx,) = run(normalization.log_softmax_gradient, [y, dy], threads)
    assert (kernel.op, kernel.workspaces) == ("log_softmax_gradient", ())
    exact = dy - np.exp(y.astype(np.float64)) * dy.sum(-1, keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(dx, exact, rtol=2e-6, atol=5e-6)


def test_work_in_front_of_the_gradient_needs_no_buffer():
    y, labels = np.log(exact_softmax(random((5, 4, 37), 10))).astype(np.float32), random((5, 4, 37), 11)

    def gradient(logs, hot):
        double = te.compute(hot.shape, lambda *at: hot(*at) * 2.0, name="double")
        return normalization.log_softmax_gradient(
            logs, te.compute(hot.shape, lambda *at: -double(*at), name="negative")
        )

    kernel, (dx,) = run(gradient, [y, labels], 2)
    assert (kernel.op, kernel.workspaces) == ("log_softmax_gradient", ())
    dy = -2.0 * labels.astype(np.float64)
    np.testing.assert_allclose(dx, dy - np.exp(y.astype(np.float64)) * dy.sum(-1, keepdims=True), rtol=1e-5, atol=5e-6)


def exact_normal(x):
    """Normalized rows, and their inverse deviations."""
    distance = x.astype(np.float64) - x.mean(-1, keepdims=True, dtype=np.float64)
    inverse = 1 / np.sqrt((distance**2).mean(-1, keepdims=True) + EPSILON)
    return distance * inverse, inverse


@IN_THREADS
def test_layer_norm_and_gradient(shape, threads):
    x, gamma, beta, dy = random(shape, 4) + 3, random(shape[-1:], 5), random(shape[-1:], 6), random(shape, 7)
    normal, inverse = exact_normal(x)
    kernel, (y,) = run(normalization.layer_norm, [x, gamma, beta], threads, EPSILON)
    assert (kernel.op, kernel.op_class) == ("layer_norm", OpClass.NORMALIZATION)
    np.testing.assert_allclose(y, normal * gamma + beta, rtol=1e-5, atol=2e-5)
    kernel, (dx, dgamma, dbeta) = run(normalization.layer_norm_gradient, [x, gamma, dy], threads, EPSILON)
    assert (kernel.op, kernel.op_class) == ("layer_norm_gradient", OpClass.NORMALIZATION_GRADIENT)
    slope, leading = dy.astype(np.float64) * gamma, tuple(range(len(shape) - 1))
    means = slope.mean(-1, keepdims=True), (slope * normal).mean(-1, keepdims=True)
    np.testing.assert_allclose(dx, inverse * (slope - means[0] - normal * means[1]), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(dgamma, (dy * normal).sum(leading), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(dbeta, dy.sum(leading, dtype=np.float64), rtol=1e-5, atol=2e-5)


def test_sums_over_many_rows_are_summed_in_blocks():
    x, gamma = random((20_000, 16), 8), np.ones(16, np.float32)
    dy = np.abs(random(x.shape, 9)) + 1
    _, (_, _, dbeta) = run(normalization.layer_norm_gradient, [x, gamma, dy], 2, EPSILON)
    np.testing.assert_allclose(dbeta, dy.sum(0, dtype=np.float64), rtol=5e-7)


def test_exponential_is_exact_to_two_units_in_the_last_place():
    x = np.linspace(-100, 88.3, 16 * 5000, dtype=np.float32).reshape(5000, 16)
    argument = te.placeholder(x.shape, name="x")
    result = te.compute(x.shape, lambda i, j: exponential(argument(i, j), 1), name="exponential")
    (found,) = call(kernel_of([argument, result]), [x])
    exact = np.exp(x.astype(np.float64))
    normal = exact > 1.3e-38
    assert np.abs(found[normal] / exact[normal] - 1).max() < 2.4e-7
    assert not found[exact < np.finfo(np.float32).tiny].any()
    assert isinstance(exponential(tirx.const(0.0, "float32"), 1), tirx.Select)
