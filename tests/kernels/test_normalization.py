"""Batch norm, a bias's gradient, layer normalization and softmax against float64, on any number of threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from compiled_kernels import TARGET, call, kernel_of, placeholders
from tvm import te, tirx

from autotm.kernels import normalization
from autotm.kernels.schedules.channel_sums import bias_gradient
from autotm.kernels.schedules.rows import exponential
from autotm.kernels.target import host_target
from autotm.model.graph import OpClass

EPSILON = 1e-5
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})
SHAPES = [
    (2, 4, 4, 64),
    (8, 14, 14, 96),
    (4, 28, 28, 67),
    (2, 3, 5, 1000),
    (1, 1, 3, 3),
    (3, 1, 1, 16),
    (2, 9, 11, 1),
    (1, 2, 2, 2048),
]


def activations(shape, seed=0):
    """Channels of their own mean and spread, some far from zero."""
    random = np.random.default_rng(seed)
    spread = random.uniform(0.1, 3, shape[-1])
    return (random.standard_normal(shape) * spread + random.uniform(-20, 20, shape[-1])).astype("float32")


def exact_statistics(x):
    wide = x.astype(np.float64).reshape(-1, x.shape[-1])
    return wide.mean(axis=0), 1 / np.sqrt(wide.var(axis=0) + EPSILON)


def check_statistics(x, threads=2, target=None, inverse_rtol=2e-6):
    (argument,) = placeholders(x.shape)
    target = target or host_target(threads)
    kernel = kernel_of([argument, *normalization.statistics(argument, EPSILON)], threads, target)
    assert (kernel.op, kernel.op_class) == ("batch_norm_statistics", OpClass.NORMALIZATION)
    (mean, inverse), (exact_mean, exact_inverse) = call(kernel, [x], target), exact_statistics(x)
    np.testing.assert_allclose(mean, exact_mean, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(inverse, exact_inverse, rtol=inverse_rtol)
    return mean


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics(shape):
    check_statistics(activations(shape), inverse_rtol=2e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_statistics_on_other_threads_and_vectors(threads):
    for target in (host_target(threads), AVX2):
        check_statistics(activations((4, 21, 23, 83), 1), threads, target)


def test_variances_far_from_zero_do_not_cancel_and_a_constant_channel_has_none():
    check_statistics(
        (1000 + np.random.default_rng(2).standard_normal((16, 25, 25, 33))).astype("float32"), inverse_rtol=1e-6
    )
    mean = check_statistics(np.full((2, 5, 5, 20), 0.3, "float32"), inverse_rtol=1e-5)
    np.testing.assert_allclose(mean, 0.3, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "threads"),
    [
        pytest.param(shape, threads, marks=() if threads == 1 + number % 3 else pytest.mark.slow)
        for number, shape in enumerate(SHAPES)
        for threads in (1, 2, 3)
    ],
)
def test_gradient_sums(shape, threads):
    x, dy = activations(shape), np.random.default_rng(3).standard_normal(shape, "float32")
    mean, inverse = (value.astype("float32") for value in exact_statistics(x))
    channel = shape[-1:]
    arguments = placeholders(shape, shape, channel, channel)
    target = AVX2 if threads == 2 else host_target(threads)
    kernel = kernel_of([*arguments, *normalization.gradient_sums(*arguments)], threads, target)
    assert kernel.op_class == OpClass.NORMALIZATION_GRADIENT
    dgamma, dbeta = call(kernel, [dy, x, mean, inverse], target)
    wide = (x.astype(np.float64) - mean) * inverse
    size = np.sqrt(x.size / channel[0])
    np.testing.assert_allclose(dgamma, (dy * wide).sum(axis=(0, 1, 2)), atol=3e-6 * size)
    np.testing.assert_allclose(dbeta, dy.sum(axis=(0, 1, 2), dtype="float64"), atol=3e-6 * size)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalise_and_data_gradient(shape):
    x, dy = activations(shape), np.random.default_rng(4).standard_normal(shape, "float32")
    mean, inverse = (value.astype("float32") for value in exact_statistics(x))
    random = np.random.default_rng(5)
    gamma, beta, dgamma, dbeta = (random.standard_normal(shape[-1:], "float32") for _ in range(4))
    channel = shape[-1:]
    normalised = (x.astype(np.float64) - mean) * inverse
    arguments = placeholders(shape, *[channel] * 4)
    kernel = kernel_of([*arguments, normalization.normalise(*arguments)])
    assert (kernel.op, kernel.workspaces) == ("batch_norm", ())
    y = call(kernel, [x, gamma, beta, mean, inverse])[0]
    np.testing.assert_allclose(y, normalised * gamma + beta, rtol=1e-4, atol=1e-5)

    arguments = placeholders(shape, shape, *[channel] * 5)
    kernel = kernel_of([*arguments, normalization.data_gradient(*arguments)])
    assert (kernel.op, kernel.workspaces) == ("batch_norm_gradient", ())
    dx = call(kernel, [dy, x, gamma, mean, inverse, dgamma, dbeta])[0]
    rows = x.size / channel[0]
    np.testing.assert_allclose(
        dx, gamma * inverse * (dy - dbeta / rows - normalised * dgamma / rows), rtol=1e-4, atol=1e-4
    )


def test_the_written_form_of_the_reductions_means_the_same():
    shape, channel, target = (2, 5, 5, 20), (20,), host_target(1)
    x, dy = activations(shape), np.random.default_rng(6).standard_normal(shape, "float32")
    mean, inverse = (value.astype("float32") for value in exact_statistics(x))
    first, second = placeholders(shape), placeholders(shape, shape, channel, channel)
    for tensors, operands in (
        ([*first, *normalization.statistics(*first, EPSILON)], [x]),
        ([*second, *normalization.gradient_sums(*second)], [dy, x, mean, inverse]),
    ):
        kernel = kernel_of(tensors, 1, target)
        plain = dataclasses.replace(kernel, func=te.create_prim_func(tensors), workspaces=())
        for result, expected in zip(call(kernel, operands), call(plain, operands), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shape",
    [(8, 4, 4, 512), (2, 1000), (4, 31, 29, 67), (1, 1, 1, 5), (3, 40, 41, 1), (2, 2, 2, 2051), (16, 25, 25, 32)],
)
@pytest.mark.parametrize("target", [host_target(1), host_target(3), AVX2])
def test_bias_gradient(shape, target):
    threads = int(target.attrs["num-cores"])
    dy = np.random.default_rng(0).standard_normal(shape, "float32") + np.float32(0.5)
    (argument,) = placeholders(shape)
    kernel = kernel_of([argument, bias_gradient(argument)], threads, target)
    assert (kernel.op, kernel.op_class) == ("bias_gradient", OpClass.REDUCTION)
    exact = dy.astype("float64").reshape(-1, shape[-1]).sum(axis=0)
    rows = dy.size / shape[-1]
    np.testing.assert_allclose(call(kernel, [dy], target)[0], exact, rtol=1e-6, atol=3e-7 * np.sqrt(rows))


# Kernels that work row by row, against NumPy in float64: any width, several thread counts.

ROW_SHAPES = [(3, 5, 64), (7, 150), (2, 3), (4, 1), (33, 2011)]
THREADS = [1, 2, 3]
MASKED = -1e9


IN_THREADS = pytest.mark.parametrize(
    ("shape", "threads"),
    [
        # Each shape is quick on one number of threads, and each number with one shape at least.
        pytest.param(shape, threads, marks=() if (row + column) % len(THREADS) == 0 else pytest.mark.slow)
        for row, shape in enumerate(ROW_SHAPES)
        for column, threads in enumerate(THREADS)
    ],
)


def random(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(function, arrays, threads, *arguments):
    """The kernel, and what it returns; on three threads with shorter vectors."""
    tensors, target = placeholders(*(array.shape for array in arrays)), AVX2 if threads == 3 else TARGET
    results = function(*tensors, *arguments)
    kernel = kernel_of([*tensors, *(results if isinstance(results, list) else [results])], threads, target)
    return kernel, call(kernel, arrays, target)


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
    (argument,) = placeholders(x.shape)
    result = te.compute(x.shape, lambda i, j: exponential(argument(i, j), 1), name="exponential")
    (computed,) = call(kernel_of([argument, result]), [x])
    exact = np.exp(x.astype(np.float64))
    normal = exact > 1.3e-38
    assert np.abs(computed[normal] / exact[normal] - 1).max() < 2.4e-7
    assert not computed[exact < np.finfo(np.float32).tiny].any()
    assert isinstance(exponential(tirx.const(0.0, "float32"), 1), tirx.Select)
