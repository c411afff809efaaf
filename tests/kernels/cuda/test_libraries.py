"""What can be said of NVIDIA's libraries where there are none: extents and strides, weights turned, messages."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from cuda_cases import SMALL, random
from emulated_cuda import EmulatedDevice

from autotm.kernels.cuda import Convolution, cudnn_algorithms, product_algorithms, product_layouts, turned_weights
from autotm.model.files import AutotmError

CONVOLUTION = Convolution((2, 9, 8, 12), (3, 2, 12, 20), (2, 7, 7, 20), (1, 1), (0, 0, 0, 0))


def test_extents_and_strides_address_what_lies_channels_last():
    for role, shape in (("x", CONVOLUTION.x), ("y", CONVOLUTION.y), ("w", (20, 3, 2, 12))):
        extents, strides = CONVOLUTION.operands[role]
        array = np.arange(np.prod(shape)).reshape(shape)
        seen = np.lib.stride_tricks.as_strided(array, extents, [stride * array.itemsize for stride in strides])
        np.testing.assert_array_equal(seen, array.transpose(0, 3, 1, 2))


def test_weights_are_turned_and_turned_back(tmp_path):
    there, back = (turned_weights(CONVOLUTION.w, SMALL, back=back) for back in (False, True))
    device, weights = EmulatedDevice([there, back], tmp_path), random(CONVOLUTION.w)
    turned = device.run(there, [weights])[1]
    np.testing.assert_array_equal(turned, weights.transpose(3, 0, 1, 2))
    np.testing.assert_array_equal(device.run(back, [turned])[1], weights)


@pytest.mark.skipif(importlib.util.find_spec("cudnn") is not None, reason="cuDNN's package is installed")
def test_a_missing_library_is_told():
    with pytest.raises(AutotmError, match="pip install nvidia-cudnn-frontend"):
        cudnn_algorithms(CONVOLUTION, "conv2d")


@pytest.mark.parametrize("kind", ["matmul", "matmul_nt", "matmul_tn"])
def test_products_lie_as_cublas_reads_them(kind):
    left, right = random((3, 5)), random((5, 4), 1)
    lying = [left.T.copy() if kind == "matmul_tn" else left, right.T.copy() if kind == "matmul_nt" else right]
    first, second, result = product_layouts(kind, 3, 4, 5)

    def seen(array, layout):
        rows, columns, turned = layout
        matrix = array.reshape(-1).reshape((rows, columns), order="F")
        return matrix.T if turned else matrix

    product = seen(lying[1], first) @ seen(lying[0], second)
    assert product.shape == result[:2]
    np.testing.assert_allclose(product.reshape(-1, order="F").reshape(3, 4), left @ right, rtol=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("nvmath") is not None, reason="cuBLAS's package is installed")
def test_a_missing_cublas_is_told():
    with pytest.raises(AutotmError, match="pip install nvmath-python"):
        product_algorithms("matmul", 3, 4, 5)
