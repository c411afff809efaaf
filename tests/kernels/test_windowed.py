"""Pools, grouped and depthwise convolutions, and their gradients, against NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from compiled_kernels import call, kernel_of, placeholders
from contraction_cases import DEPTHWISE, GROUPED, Window, error, random_array, random_windows
from memory_bound_cases import POOLS
from tvm import te, tirx

from autotm.kernels import contractions, windowed
from autotm.kernels.schedules.contraction import others
from autotm.kernels.windowed import Axis
from autotm.model.graph import DEFAULT_IMPLEMENTATION, OpClass


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


def maxima(x, *geometry):
    """The maximum of each window."""
    y = np.empty(output_shape(x.shape, *geometry), "float32")
    for i, j, inside in positions(x.shape, *geometry):
        y[:, i, j] = np.max([x[:, h, w] for h, w in inside], axis=0)
    return y


@pytest.mark.parametrize(("shape", "pool", "stride", "padding"), POOLS)
def test_max_pool(shape, pool, stride, padding):
    x = values(shape, 0)
    (argument,) = placeholders(shape)
    kernel = kernel_of([argument, windowed.max_pool2d(argument, pool, stride, padding)])
    assert kernel.op_class == OpClass.WINDOW
    np.testing.assert_array_equal(call(kernel, [x])[0], maxima(x, pool, stride, padding))


@each_other_pool(0)
def test_max_pool_gradient_goes_to_the_first_maximum(shape, pool, stride, padding):
    x = values(shape, 1)
    y = maxima(x, pool, stride, padding)
    dy, expected = np.random.default_rng(2).random(y.shape, "float32"), np.zeros(shape)
    for i, j, inside in positions(shape, pool, stride, padding):
        first = np.argmax([x[:, h, w] for h, w in inside], axis=0)
        for place, (h, w) in enumerate(inside):
            expected[:, h, w] += np.where(first == place, dy[:, i, j], 0)
    arguments = placeholders(shape, y.shape, y.shape)
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
    pooled = windowed.max_pool2d(te.compute(shape, lambda *i: argument(*i) * 2.0, name="twice"), *geometry)
    after = te.compute(pooled.shape, lambda *i: pooled(*i) + 1.0, name="one_more")
    x, kernel = values(shape, 5), kernel_of([argument, after])
    assert kernel.workspaces == ()
    np.testing.assert_array_equal(call(kernel, [x])[0], maxima(2 * x, *geometry) + 1)


@pytest.mark.parametrize("axis", [(4, 3, 2, 3, 0), (2, 3, 1, 0, 0)])
def test_impossible_windows_are_refused(axis):
    with pytest.raises(ValueError, match="window"):
        Axis(*axis)


# Grouped and depthwise convolutions and their gradients against each group's own in float64.

LIMIT = 3e-6

FORMS = {
    "conv2d": (contractions.conv2d, contractions.conv2d_data_gradient, contractions.conv2d_weight_gradient),
    "depthwise": (
        windowed.depthwise_conv2d,
        windowed.depthwise_conv2d_data_gradient,
        windowed.depthwise_conv2d_weight_gradient,
    ),
}


def random_groups(count: int) -> list[tuple[Window, int]]:
    """Random windows for each group, of any number of groups."""
    random = np.random.default_rng(3)
    cases = []
    for window in random_windows(count):
        groups, channels, features = int(random.integers(2, 9)), window.w[2] % 9 + 1, window.w[3] % 9 + 1
        shape, weights = (*window.x[:3], channels * groups), (*window.w[:2], channels, features * groups)
        cases.append((Window(shape, weights, window.stride, window.padding), groups))
    return cases


def expected(window: Window, groups: int, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
    """Result and both gradients, group by group."""
    shapes = {"x": (*window.x[:3], window.x[3] // groups), "w": (*window.w[:3], window.w[3] // groups)}
    own = dataclasses.replace(window, **shapes)
    parts = zip(*(np.split(array, groups, -1) for array in (x, w, dy)), strict=True)
    results = [(own.forward(a, b), own.data_gradient(d, b), own.weight_gradient(a, d)) for a, b, d in parts]
    return [np.concatenate(pieces, -1) for pieces in zip(*results, strict=True)]


def errors(
    window: Window, groups: int, form: str, threads: int, implementation: str = DEFAULT_IMPLEMENTATION
) -> list[float]:
    """The error of each of the three passes, relative to the largest value of that pass."""
    x, w, dy = random_array(window.x, 1), random_array(window.w, 2), random_array(window.y, 3)
    tx, tw, td = placeholders(window.x, window.w, window.y)
    geometry = (window.stride, window.padding, *([groups] if form == "conv2d" else []))
    forward, data, weights = FORMS[form]
    graphs = [
        ([tx, tw, forward(tx, tw, *geometry)], [x, w]),
        ([td, tw, data(td, tw, window.x, *geometry)], [dy, w]),
        ([tx, td, weights(tx, td, window.w, *geometry)], [x, dy]),
    ]
    arrays = [call(kernel_of(tensors, threads, implementation=implementation), inputs)[0] for tensors, inputs in graphs]
    return [error(*pair) for pair in zip(arrays, expected(window, groups, x, w, dy), strict=True)]


@pytest.mark.parametrize(
    ("window", "groups", "implementation"),
    [
        # Each window, some random ones excepted, has one implementation whose case is not marked slow.
        pytest.param(
            *case,
            implementation,
            marks=() if number % 2 == turn % 2 and number < len(GROUPED) + 2 else pytest.mark.slow,
            id=f"{case}-{implementation}",
        )
        for number, case in enumerate([*GROUPED, *random_groups(4)])
        for turn, implementation in enumerate([DEFAULT_IMPLEMENTATION, *others("conv2d")])
    ],
)
def test_groups(window: Window, groups: int, implementation: str) -> None:
    assert max(errors(window, groups, "conv2d", 2, implementation)) < LIMIT


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_threads(threads: int) -> None:
    assert max(errors(*GROUPED[-1], "conv2d", threads)) < LIMIT
    assert max(errors(DEPTHWISE[-2], DEPTHWISE[-2].x[3], "depthwise", threads)) < LIMIT


@pytest.mark.parametrize("window", DEPTHWISE, ids=str)
def test_depthwise(window: Window) -> None:
    assert max(errors(window, window.x[3], "depthwise", threads=2)) < LIMIT


def test_depthwise_with_windows_in_the_padding_alone_is_grouped() -> None:
    assert windowed.depthwise_fits((3, 3), (2, 2, 2, 2))
    assert not windowed.depthwise_fits((3, 1), (1, 1, 1, 1))


def test_names_classes_and_operations() -> None:
    window, groups = GROUPED[0]
    x, w = placeholders(window.x, window.w)
    kernel = kernel_of([x, w, contractions.conv2d(x, w, window.stride, window.padding, groups)])
    assert (kernel.op, kernel.op_class) == ("conv2d", OpClass.CONV_FORWARD)
    assert kernel.flops == 2 * np.prod(window.y) * 9 * 4
    x, w = placeholders(DEPTHWISE[0].x, DEPTHWISE[0].w)
    kernel = kernel_of([x, w, windowed.depthwise_conv2d(x, w, (1, 1), (1, 1, 1, 1))])
    assert (kernel.op, kernel.op_class) == ("depthwise_conv2d", OpClass.WINDOW)


@pytest.mark.parametrize("form", ["conv2d", "depthwise"])
def test_bias_and_relu_are_fused(form: str) -> None:
    window, groups = GROUPED[1] if form == "conv2d" else (DEPTHWISE[1], DEPTHWISE[1].x[3])
    x, w, b = random_array(window.x, 1), random_array(window.w, 2), random_array(window.w[-1:], 3)
    geometry = (window.stride, window.padding, *([groups] if form == "conv2d" else []))
    tx, tw, tb = placeholders(window.x, window.w, window.w[-1:])
    y = FORMS[form][0](tx, tw, *geometry)
    active = te.compute(y.shape, lambda *i: tirx.max(y(*i) + tb(i[-1]), tirx.const(0.0, "float32")), name="relu")
    whole = expected(window, groups, x, w, np.zeros(window.y, "float32"))[0]
    assert error(call(kernel_of([tx, tw, tb, active]), [x, w, b])[0], np.maximum(whole + b, 0)) < LIMIT
