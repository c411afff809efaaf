"""Contractions as CUDA source, run on this CPU, against float64: every pass, implementation and tile, odd extents."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import tvm
from contraction_cases import GROUPED, WINDOWS, Window
from cuda_cases import SMALL, random
from emulated_cuda import EmulatedDevice
from tvm import te
from tvm.s_tir import Schedule

from autotm.kernels.cuda import CudaKernel, cuda_kernel, workspace_bytes
from autotm.kernels.cuda.contraction.choice import by_tiles
from autotm.kernels.cuda.contraction.estimate import TILES, Way
from autotm.kernels.cuda.contraction.product import product_of
from autotm.kernels.cuda.source import Facts, kernel_of
from autotm.kernels.operators import conv, matmul
from autotm.kernels.operators.batched_matmul import batched_matmul
from autotm.kernels.schedules import problem_of
from autotm.model.step import OpClass, ScheduleKind

IMPLEMENTATIONS = ("default", "lean", "direct", "unfolded")


@dataclass(frozen=True)
class Contraction:
    """Tensors of the function, values of its two inputs, and the exact result."""

    tensors: list[te.Tensor]
    inputs: list[np.ndarray]
    exact: np.ndarray


def contraction(function, inputs, exact) -> Contraction:
    operands = [te.placeholder(array.shape, name=f"p{slot}") for slot, array in enumerate(inputs)]
    # An epilogue that reads an operand of the result's shape and one of its last axis.
    result = function(*operands)
    whole, bias = te.placeholder(result.shape, name="whole"), te.placeholder(result.shape[-1:], name="bias")
    end = te.compute(result.shape, lambda *i: result(*i) * 0.5 + whole(*i) + bias(i[-1]), name="end")
    more = [random(exact.shape, 8), random(exact.shape[-1:], 9)]
    return Contraction([*operands, whole, bias, end], [*inputs, *more], exact * 0.5 + more[0] + more[1])


def passes(window: Window, groups: int = 1) -> dict[str, Contraction]:
    x, w, dy = random(window.x, 0), random(window.w, 1), random(window.y, 2)
    how = (window.stride, window.padding, groups)
    exact = [window.forward, window.data_gradient, window.weight_gradient]
    if groups > 1:
        exact = [functools.partial(in_groups, window, groups, kind) for kind in range(3)]
    return {
        "forward": contraction(lambda x, w: conv.conv2d(x, w, *how), [x, w], exact[0](x, w)),
        "data gradient": contraction(
            lambda dy, w: conv.conv2d_data_gradient(dy, w, window.x, *how), [dy, w], exact[1](dy, w)
        ),
        "weight gradient": contraction(
            lambda x, dy: conv.conv2d_weight_gradient(x, dy, window.w, *how), [x, dy], exact[2](x, dy)
        ),
    }


def in_groups(window, groups, kind, left, right):
    """A pass, group by group."""
    wide, features = window.w[2], window.w[3] // groups
    one = Window((*window.x[:3], wide), (*window.w[:3], features), window.stride, window.padding)
    parts = []
    for group in range(groups):
        channels, own = slice(group * wide, (group + 1) * wide), slice(group * features, (group + 1) * features)
        if kind == 0:
            parts.append(one.forward(left[..., channels], right[..., own]))
        elif kind == 1:
            parts.append(one.data_gradient(left[..., own], right[..., own]))
        else:
            parts.append(one.weight_gradient(left[..., channels], right[..., own]))
    return np.concatenate(parts, axis=-1)


def product(kind, rows, columns, steps) -> Contraction:
    a, b = random((rows, steps)), random((steps, columns), 1)
    exact = a.astype(np.float64) @ b
    inputs = {"matmul": [a, b], "matmul_nt": [a, b.T.copy()], "matmul_tn": [a.T.copy(), b]}[kind]
    return contraction(getattr(matmul, kind), inputs, exact)


def batched(subscripts, left, right) -> Contraction:
    a, b = random(left), random(right, 1)
    exact = np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64))
    return contraction(lambda x, y: batched_matmul(x, y, subscripts), [a, b], exact)


CASES: dict[str, Contraction] = {
    **{f"{name} {number}": one for number in (2, 4, 6, 8, 9, 12) for name, one in passes(WINDOWS[number]).items()},
    **{f"{name} grouped {n}": one for n in (0, 2) for name, one in passes(*GROUPED[n]).items()},
    **{f"{kind} {sizes}": product(kind, *sizes) for kind in ("matmul", "matmul_nt", "matmul_tn")
       for sizes in ((37, 50, 29), (8, 12, 30000), (64, 96, 32))},
    "heads": batched("bihd,bjhd->bhij", (2, 5, 3, 36), (2, 7, 3, 36)),
    "heads back": batched("bhij,bjhd->bihd", (2, 3, 5, 8), (2, 8, 3, 36)),
    "turned heads": batched("bhij,bihd->bjhd", (1, 2, 9, 16), (1, 9, 2, 12)),
}  # fmt: skip


def made(name: str) -> dict[str, CudaKernel]:
    function = te.create_prim_func(CASES[name].tensors)
    default = cuda_kernel(function, SMALL)
    assert default.kind == ScheduleKind.GENERATED
    return {"default": default, **{other: cuda_kernel(function, SMALL, other) for other in default.others}}


@pytest.fixture(scope="module")
def kernels():
    return {name: made(name) for name in CASES}


@pytest.fixture(scope="module")
def device(kernels, tmp_path_factory):
    every = [kernel for several in kernels.values() for kernel in several.values()]
    return EmulatedDevice(every, tmp_path_factory.mktemp("cuda"))


def close(kernel, one, device):
    for order in (0, 1):
        found = device.run(kernel, one.inputs, order=order)[len(one.inputs)]
        np.testing.assert_allclose(found, one.exact, rtol=1e-4, atol=1e-4 * np.abs(one.exact).max())


@pytest.mark.parametrize("name", CASES)
def test_every_implementation_is_the_contraction(name, kernels, device):
    for kernel in kernels[name].values():
        close(kernel, CASES[name], device)


def test_each_pass_of_a_convolution_has_several_implementations(kernels):
    several = kernels["weight gradient 8"]
    assert {"default", "direct", "unfolded"} <= set(several)
    assert workspace_bytes(several["direct"]) == 0
    window = WINDOWS[8]
    pixels, taps = math.prod(window.y[:3]), math.prod(window.w[:3])
    assert workspace_bytes(several["unfolded"]) == 4 * pixels * taps


def test_a_long_sum_is_split_with_exactly_stated_workspace(kernels):
    several = kernels["matmul (8, 12, 30000)"]
    parts = several["default"].launches[0].grid[2]
    assert parts > 1
    assert several["default"].workspaces == (((parts, 8 * 12), "float32"),)
    assert several["default"].others == ("lean",)
    assert workspace_bytes(several["lean"]) == 0


@pytest.mark.parametrize("parts", [1, 2])
def test_every_tile(parts, tmp_path):
    one = product("matmul_nt", 139, 141, 70)
    function = te.create_prim_func(one.tensors)
    found = []
    for tile in TILES:
        sch = Schedule(tvm.IRModule({"main": function}))
        problem = problem_of(sch, sch.get_sblock("matmul_nt"))
        stages, workspaces = by_tiles(problem, product_of(problem), Way(tile, parts))
        facts = Facts("matmul_nt", OpClass.MATMUL, 0, (), ScheduleKind.GENERATED)
        found.append(kernel_of(stages, list(function.params), workspaces, facts, SMALL))
    device = EmulatedDevice(found, tmp_path)
    for kernel in found:
        close(kernel, one, device)


def test_an_implementation_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="unfolded"):
        cuda_kernel(te.create_prim_func(product("matmul", 4, 4, 4).tensors), SMALL, "unfolded")
