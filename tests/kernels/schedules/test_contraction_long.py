"""A Bᵀ with long rows, against NumPy in float64: whole blocks of steps or not, several threads, an epilogue."""

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from contraction_cases import error, random_array
from tvm import te

from autotm.kernels.contractions import matmul_nt
from autotm.kernels.target import CHAIN_STEPS


@pytest.mark.parametrize(
    "threads", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("steps", [4 * CHAIN_STEPS, 4 * CHAIN_STEPS + 37])
def test_blocks_of_steps_need_small_panels(steps, threads):
    a, b, c = random_array((29, steps), 0), random_array((600, steps), 1), random_array((29, 600), 2)
    left, right, old = (te.placeholder(array.shape, name=f"p{index}") for index, array in enumerate((a, b, c)))
    product = matmul_nt(left, right)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    plain = kernel_of([left, right, product], threads)
    assert error(call(plain, [a, b])[0], exact) < 1e-6
    assert max(shape[0] for shape, _ in plain.workspaces) < b.size // 4
    new = te.compute(product.shape, lambda i, j: old(i, j) - product(i, j) * 0.5, name="new")
    assert error(call(kernel_of([left, right, old, new], threads), [a, b, c])[0], c - exact * 0.5) < 1e-6
