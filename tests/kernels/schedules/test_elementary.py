"""Elementary functions of vectors: a few units in the last place, infinities and NaN as in the C library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compiled_kernels import call, kernel_of
from tvm import te, tirx

FUNCTIONS = {
    "exp": (tirx.exp, np.exp),
    "tanh": (tirx.tanh, np.tanh),
    "erf": (tirx.erf, np.vectorize(math.erf)),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
ODD = np.array([0.0, np.inf, -np.inf, np.nan, 200.0, -200.0, 88.0], np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_float32(name: str) -> None:
    function, exact = FUNCTIONS[name]
    values = np.concatenate([np.linspace(-30, 30, 5003), np.geomspace(1e-30, 80, 1000), ODD]).astype(np.float32)
    x = te.placeholder(values.shape, "float32", name="x")
    kernel = kernel_of([x, te.compute(x.shape, lambda i: function(x[i]), name="y")])
    with np.errstate(all="ignore"):
        expected = exact(values.astype(np.float64))
        (found,) = call(kernel, [values])
        np.testing.assert_allclose(found, expected.astype(np.float32), rtol=8e-7, atol=1e-37)
    assert f"T.{name}(" not in kernel.func.script()
