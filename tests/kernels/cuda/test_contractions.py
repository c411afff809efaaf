"""Contractions as CUDA source, run on this CPU, against float64: every pass, implementation and tile, odd extents."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from contraction_cases import WINDOWS
from cuda_cases import SMALL
from cuda_contractions import CASES, SETS, by_one_way, product, workspace_bytes
from emulated_cuda import EmulatedDevice
from tvm import te

from autotm.kernels.cuda.contraction import TILES, Tiling
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.source import CudaKernel
from autotm.model.graph import ScheduleKind


@functools.cache
def made(name: str) -> dict[str, CudaKernel]:
    function = te.create_prim_func(CASES[name].tensors)
    default = cuda_kernel(function, SMALL)
    assert default.kind == ScheduleKind.GENERATED
    return {"default": default, **{other: cuda_kernel(function, SMALL, other) for other in default.others}}


def close(kernel, one, device):
    for order in (0, 1):
        found = device.run(kernel, one.inputs, order=order)[len(one.inputs)]
        np.testing.assert_allclose(found, one.exact, rtol=1e-4, atol=1e-4 * np.abs(one.exact).max())


@pytest.mark.parametrize("names", SETS)
def test_every_implementation_is_the_contraction(names, tmp_path):
    device = EmulatedDevice([kernel for name in names for kernel in made(name).values()], tmp_path)
    for name in names:
        for kernel in made(name).values():
            close(kernel, CASES[name], device)


def test_each_pass_of_a_convolution_has_several_implementations():
    several = made("weight gradient 8")
    assert {"default", "direct", "unfolded"} <= set(several)
    assert workspace_bytes(several["direct"]) == 0
    window = WINDOWS[8]
    pixels, taps = math.prod(window.y[:3]), math.prod(window.w[:3])
    assert workspace_bytes(several["unfolded"]) == 4 * pixels * taps


def test_a_long_sum_is_split_with_exactly_stated_workspace():
    several = made("matmul (8, 12, 30000)")
    parts = several["default"].launches[0].grid[2]
    assert parts > 1
    assert several["default"].workspaces == (((parts, 8 * 12), "float32"),)
    assert several["default"].others == ("lean",)
    assert workspace_bytes(several["lean"]) == 0


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_tile(parts, tmp_path):
    one = product("matmul_nt", 139, 141, 70)
    function = te.create_prim_func(one.tensors)
    found = [by_one_way(function, Tiling(tile, parts)) for tile in TILES]
    device = EmulatedDevice(found, tmp_path)
    for kernel in found:
        close(kernel, one, device)


def test_an_implementation_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="unfolded"):
        cuda_kernel(te.create_prim_func(product("matmul", 4, 4, 4).tensors), SMALL, "unfolded")
