"""Sums over any axes, long ones without much rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from memory_bound_cases import SUMS, summed

from autotm.kernels.schedules.memory_bound import _blocking
from autotm.model.graph import OpClass


@pytest.mark.parametrize(
    ("shape", "axes"),
    SUMS,
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
