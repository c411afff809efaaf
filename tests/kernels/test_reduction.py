from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import te

from autotm.kernels.reduction import _blocking
from autotm.model.graph import OpClass
from compiled_kernels import call, kernel_of


def summed(shape, axes, before=lambda value: value):
    """The sum of `before(x)` over some axes as a TE graph, and x."""
    x = te.placeholder(shape, name="x")
    reduced = [te.reduce_axis((0, shape[axis]), f"r{axis}") for axis in axes]
    kept = [shape[axis] for axis in range(len(shape)) if axis not in axes]

    def body(*outer):
        rest = iter(outer)
        terms = iter(reduced)
        index = [next(terms) if axis in axes else next(rest) for axis in range(len(shape))]
        return te.sum(before(x(*index)), axis=reduced)

    return [x, te.compute(kept, body, name="total")]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((16, 7, 7, 96), (0, 1, 2)),
        ((4, 35, 35, 50), (0, 1, 2)),
        ((2, 67, 67, 32), (0, 1, 2)),
        ((4099, 33), (0,)),
        ((131, 1), (0,)),
        ((3, 5, 7), (1,)),
        ((300, 1000), (1,)),
        ((37, 1009), (1,)),
        ((5, 19), (1,)),
        ((8, 100, 130), (1, 2)),
        ((4, 9, 9, 200), (1, 2)),
        ((2, 40, 40, 67), (1, 2)),
        ((40, 3), (0, 1)),
        ((100_003,), (0,)),
        ((1000, 1000), (0, 1)),
        ((7,), (0,)),
        ((3,), (0,)),
        ((500, 6, 40), (0, 2)),
    ],
)
def test_sum_over_any_axes(shape, axes):
    x = np.random.default_rng(0).random(shape, "float32") - np.float32(0.3)
    kernel = kernel_of(summed(shape, axes))
    assert kernel.op_class == OpClass.REDUCTION
    expected = x.sum(axes, dtype="float64")
    scale = np.abs(x).sum(axes, dtype="float64")
    (result,) = call(kernel, [x])
    assert (np.abs(result - expected) <= 1e-6 * scale).all()


@pytest.mark.parametrize(("shape", "axes"), [((1_000_000, 16), (0,)), ((3, 1_000_000), (1,)), ((1_000_003, 2), (0,))])
def test_long_sums_lose_little_to_rounding(shape, axes):
    """A plain float32 loop is off by 1e-5 here; pairwise sums, NumPy's and PyTorch's, by a rounding or two."""
    x = np.random.default_rng(1).random(shape, "float32")
    expected = x.sum(axes, dtype="float64")
    (result,) = call(kernel_of(summed(shape, axes)), [x])
    error = np.sqrt(np.mean((result / expected - 1) ** 2))
    assert error <= 5 * 2.0**-24


def test_elementwise_work_before_a_sum_is_fused():
    shape = (8, 17, 17, 64)
    kernel = kernel_of(summed(shape, (0, 1, 2), before=lambda value: value * value))
    x = np.random.default_rng(2).random(shape, "float32")
    np.testing.assert_allclose(call(kernel, [x])[0], (x.astype("float64") ** 2).sum((0, 1, 2)), rtol=1e-5)
    assert all(math.prod(extents) <= 64 * 64 for extents, _ in kernel.workspaces)


def test_levels_of_partial_sums_cover_every_term():
    for count in range(129, 5000):
        parts, runs = _blocking(count)
        assert count % (parts * runs) == 0 or runs == 1
        assert max(parts, runs, -(-count // parts // runs)) <= max(8 * count ** (1 / 3), 1.5 * count**0.5 + 1)
