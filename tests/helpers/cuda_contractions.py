"""Contractions with an epilogue as functions for a GPU, values for them, and the same in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
from contraction_cases import GROUPED, WINDOWS, Window
from tvm import te, tirx
from tvm.s_tir import Schedule

from autotm.kernels import contractions
from autotm.kernels.contractions import batched_matmul
from autotm.kernels.cuda.contraction import Tiling, by_tiles
from autotm.kernels.cuda.device import DEVICES
from autotm.kernels.cuda.product import product_of
from autotm.kernels.cuda.source import CudaKernel, Facts, kernel_of
from autotm.kernels.schedules.dispatch import described
from autotm.kernels.schedules.problem import problem_of
from autotm.model.graph import ScheduleKind

SMALL = replace(DEVICES["h100"], name="small", multiprocessors=4)
"""Four multiprocessors: few results are enough for it, and long sums are split into few parts."""
Pass = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Contraction:
    """Tensors of the function, values of its inputs (two factors, two terms), and the contraction itself in float64."""

    tensors: list[te.Tensor]
    inputs: list[np.ndarray]
    compute: Pass

    def of(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The result for other factors."""
        whole, bias = self.inputs[2:]
        return self.compute(left, right) * 0.5 + whole + bias

    @functools.cached_property
    def exact(self) -> np.ndarray:
        """The result."""
        return self.of(*self.inputs[:2])


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def contraction(function: Callable[..., te.Tensor], inputs: list[np.ndarray], compute: Pass) -> Contraction:
    """`function` of two factors, and behind it an epilogue."""
    operands = [te.placeholder(array.shape, name=f"p{slot}") for slot, array in enumerate(inputs)]
    # An epilogue that reads an operand of the result's shape and one of its last axis.
    result = function(*operands)
    whole, bias = te.placeholder(result.shape, name="whole"), te.placeholder(result.shape[-1:], name="bias")
    end = te.compute(result.shape, lambda *i: result(*i) * 0.5 + whole(*i) + bias(i[-1]), name="end")
    shape = tuple(int(extent) for extent in result.shape)
    more = [random(shape, 8), random(shape[-1:], 9)]
    return Contraction([*operands, whole, bias, end], [*inputs, *more], compute)


def passes(window: Window, groups: int = 1) -> dict[str, Contraction]:
    """The three passes of a convolution, by name."""
    x, w, dy = random(window.x, 0), random(window.w, 1), random(window.y, 2)
    how = (window.stride, window.padding, groups)
    compute = [window.forward, window.data_gradient, window.weight_gradient]
    if groups > 1:
        compute = [functools.partial(_in_groups, window, groups, kind) for kind in range(3)]
    return {
        "forward": contraction(lambda x, w: contractions.conv2d(x, w, *how), [x, w], compute[0]),
        "data gradient": contraction(
            lambda dy, w: contractions.conv2d_data_gradient(dy, w, window.x, *how), [dy, w], compute[1]
        ),
        "weight gradient": contraction(
            lambda x, dy: contractions.conv2d_weight_gradient(x, dy, window.w, *how), [x, dy], compute[2]
        ),
    }


def _in_groups(window: Window, groups: int, kind: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
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


def product(kind: str, rows: int, columns: int, steps: int) -> Contraction:
    """The product of two random matrices, whose operands are transposed as `kind` says."""
    a, b = random((rows, steps)), random((steps, columns), 1)
    inputs = {"matmul": [a, b], "matmul_nt": [a, b.T.copy()], "matmul_tn": [a.T.copy(), b]}[kind]
    subscripts = {"matmul": "mk,kn", "matmul_nt": "mk,nk", "matmul_tn": "km,kn"}[kind]
    return contraction(getattr(contractions, kind), inputs, functools.partial(_summed, f"{subscripts}->mn"))


def batched(subscripts: str, left: tuple[int, ...], right: tuple[int, ...]) -> Contraction:
    """The product of two random stacks of matrices."""
    inputs = [random(left), random(right, 1)]
    compute = functools.partial(_summed, subscripts)
    return contraction(lambda x, y: batched_matmul(x, y, subscripts), inputs, compute)


def _summed(subscripts: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.einsum(subscripts, left.astype(np.float64), right.astype(np.float64))


def by_tiling(function: tirx.PrimFunc, tiling: Tiling) -> CudaKernel:
    """A product of matrices by a tile that no cost rule chose."""
    sch = Schedule(tvm.IRModule({"main": function}))
    op, op_class, flops = described(sch)
    problem = problem_of(sch, sch.get_sblock(op))
    stages, workspaces = by_tiles(problem, product_of(problem), tiling)
    facts = Facts(op=op, op_class=op_class, flops=flops, kind=ScheduleKind.GENERATED, products=tiling.tile.products)
    return kernel_of(stages, list(function.params), workspaces, facts, SMALL)


def workspace_bytes(kernel: CudaKernel) -> int:
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in kernel.workspaces)


CASES: dict[str, Contraction] = {
    **{f"{name} {number}": one for number in (2, 4, 6, 8, 9, 12) for name, one in passes(WINDOWS[number]).items()},
    **{f"{name} grouped {n}": one for n in (0, 2) for name, one in passes(*GROUPED[n]).items()},
    **{f"{kind} {sizes}": product(kind, *sizes) for kind in ("matmul", "matmul_nt", "matmul_tn")
       for sizes in ((37, 50, 29), (8, 12, 30000), (64, 96, 32))},
    "heads": batched("bihd,bjhd->bhij", (2, 5, 3, 36), (2, 7, 3, 36)),
    "heads back": batched("bhij,bjhd->bihd", (2, 3, 5, 8), (2, 8, 3, 36)),
    "turned heads": batched("bhij,bihd->bjhd", (1, 2, 9, 16), (1, 9, 2, 12)),
}  # fmt: skip
QUICK = (
    *("forward 2", "data gradient 4", "weight gradient 8", "forward grouped 0", "data gradient grouped 2"),
    *("weight gradient grouped 0", "matmul_nt (37, 50, 29)", "matmul_tn (37, 50, 29)", "matmul (8, 12, 30000)"),
    *("matmul (64, 96, 32)", "heads back", "turned heads"),
)
"""One case of each pass and each order of axes, at different shapes; all are compiled at once."""
SETS = [
    pytest.param(QUICK, id="quick"),
    pytest.param(tuple(name for name in CASES if name not in QUICK), id="rest", marks=pytest.mark.slow),
]
