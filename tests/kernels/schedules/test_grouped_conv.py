"""Grouped and depthwise convolutions and their gradients against each group's own in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from contraction_cases import DEPTHWISE, GROUPED, Window, error, random_array, random_windows
from tvm import te, tirx

from autotm.kernels import contractions, windowed
from autotm.kernels.schedules.contraction import others
from autotm.model.graph import DEFAULT_IMPLEMENTATION, OpClass

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


def one_group(window: Window, groups: int) -> Window:
    return dataclasses.replace(
        window, x=(*window.x[:3], window.x[3] // groups), w=(*window.w[:3], window.w[3] // groups)
    )


def expected(window: Window, groups: int, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
    """Result and both gradients, group by group."""
    own = one_group(window, groups)
    parts = zip(*(np.split(array, groups, -1) for array in (x, w, dy)), strict=True)
    results = [(own.forward(a, b), own.data_gradient(d, b), own.weight_gradient(a, d)) for a, b, d in parts]
    return [np.concatenate(pieces, -1) for pieces in zip(*results, strict=True)]


def errors(
    window: Window, groups: int, form: str, threads: int, implementation: str = DEFAULT_IMPLEMENTATION
) -> list[float]:
    """Of the three passes, relative to their largest value."""
    x, w, dy = random_array(window.x, 1), random_array(window.w, 2), random_array(window.y, 3)
    tx, tw, td = (te.placeholder(array.shape, name=name) for name, array in (("x", x), ("w", w), ("dy", dy)))
    geometry = (window.stride, window.padding, *([groups] if form == "conv2d" else []))
    forward, data, weights = FORMS[form]
    graphs = [
        ([tx, tw, forward(tx, tw, *geometry)], [x, w]),
        ([td, tw, data(td, tw, window.x, *geometry)], [dy, w]),
        ([tx, td, weights(tx, td, window.w, *geometry)], [x, dy]),
    ]
    found = [call(kernel_of(tensors, threads, implementation=implementation), inputs)[0] for tensors, inputs in graphs]
    return [error(*pair) for pair in zip(found, expected(window, groups, x, w, dy), strict=True)]


@pytest.mark.parametrize(
    ("window", "groups", "implementation"),
    [
        # Each window but some random ones is quick in one way to compute it.
        pytest.param(
            *case,
            way,
            marks=() if number % 2 == turn % 2 and number < len(GROUPED) + 2 else pytest.mark.slow,
            id=f"{case}-{way}",
        )
        for number, case in enumerate([*GROUPED, *random_groups(4)])
        for turn, way in enumerate([DEFAULT_IMPLEMENTATION, *others("conv2d")])
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
    x, w = te.placeholder(window.x), te.placeholder(window.w)
    kernel = kernel_of([x, w, contractions.conv2d(x, w, window.stride, window.padding, groups)])
    assert (kernel.op, kernel.op_class) == ("conv2d", OpClass.CONV_FORWARD)
    assert kernel.flops == 2 * np.prod(window.y) * 9 * 4
    x, w = te.placeholder(DEPTHWISE[0].x), te.placeholder(DEPTHWISE[0].w)
    kernel = kernel_of([x, w, windowed.depthwise_conv2d(x, w, (1, 1), (1, 1, 1, 1))])
    assert (kernel.op, kernel.op_class) == ("depthwise_conv2d", OpClass.WINDOW)


@pytest.mark.parametrize("form", ["conv2d", "depthwise"])
def test_bias_and_relu_are_fused(form: str) -> None:
    window, groups = GROUPED[1] if form == "conv2d" else (DEPTHWISE[1], DEPTHWISE[1].x[3])
    x, w, b = random_array(window.x, 1), random_array(window.w, 2), random_array(window.w[-1:], 3)
    geometry = (window.stride, window.padding, *([groups] if form == "conv2d" else []))
    tx, tw, tb = (te.placeholder(array.shape, name=name) for name, array in (("x", x), ("w", w), ("b", b)))
    y = FORMS[form][0](tx, tw, *geometry)
    active = te.compute(y.shape, lambda *i: tirx.max(y(*i) + tb(i[-1]), tirx.const(0.0, "float32")), name="relu")
    whole = expected(window, groups, x, w, np.zeros(window.y, "float32"))[0]
    assert error(call(kernel_of([tx, tw, tb, active]), [x, w, b])[0], np.maximum(whole + b, 0)) < LIMIT
