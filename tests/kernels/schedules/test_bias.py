"""A bias gradient sums what NumPy sums, whatever the shape, threads and vector width."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from compiled_kernels import call, kernel_of
from tvm import te

from autotm.kernels.schedules.channel_sums import bias_gradient
from autotm.kernels.target import host_target
from autotm.model.graph import OpClass

AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})


@pytest.mark.parametrize(
    "shape",
    [(8, 4, 4, 512), (2, 1000), (4, 31, 29, 67), (1, 1, 1, 5), (3, 40, 41, 1), (2, 2, 2, 2051), (16, 25, 25, 32)],
)
@pytest.mark.parametrize("target", [host_target(1), host_target(3), AVX2])
def test_bias_gradient(shape, target):
    threads = int(target.attrs["num-cores"])
    dy = np.random.default_rng(0).standard_normal(shape, "float32") + np.float32(0.5)
    argument = te.placeholder(shape, name="dy")
    kernel = kernel_of([argument, bias_gradient(argument)], threads, target)
    assert (kernel.op, kernel.op_class) == ("bias_gradient", OpClass.REDUCTION)
    exact = dy.astype("float64").reshape(-1, shape[-1]).sum(axis=0)
    rows = dy.size / shape[-1]
    np.testing.assert_allclose(call(kernel, [dy], target)[0], exact, rtol=1e-6, atol=3e-7 * np.sqrt(rows))
