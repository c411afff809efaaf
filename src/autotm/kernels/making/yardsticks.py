"""The kernels of known work that calibration times: convolutions, one kernel of each op class, multiply-adds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import te, tirx

from autotm.kernels.library import MULTIPLY_ADDS, Yardstick, Yardsticks
from autotm.kernels.making.build import build_library
from autotm.kernels.making.co_runners import LAYERS, Layer, co_runner_functions
from autotm.kernels.making.multiply_adds import multiply_add_loop
from autotm.kernels.operators import conv2d
from autotm.kernels.schedules import ScheduledKernel, schedule
from autotm.model.step import OpClass


@dataclass(frozen=True)
class _Made:
    function: tirx.PrimFunc
    flops: int

    @property
    def yardstick(self) -> Yardstick:
        shapes = (tuple(int(extent) for extent in operand.shape) for operand in self.function.params)
        return Yardstick(tuple(shapes), self.flops)


def make_yardsticks(target: tvm.target.Target, threads: int, path: Path, objects: Path | None = None) -> Yardsticks:
    """Write a library of what tells the cores' rate at `path`; `objects` is a folder that keeps machine code for later.

    Raises:
        AutotmError: there is no C compiler, or linking failed.
    """
    layers = {f"layer_{index}": _made(scheduled_layer(layer, target, threads)) for index, layer in enumerate(LAYERS)}
    adds = _Made(*multiply_add_loop(target, threads))
    made = {**layers, MULTIPLY_ADDS: adds}
    build_library({symbol: each.function for symbol, each in made.items()}, target, path, objects)
    return Yardsticks({symbol: each.yardstick for symbol, each in layers.items()}, adds.yardstick)


def make_co_runners(
    target: tvm.target.Target,
    threads: int,
    path: Path,
    contraction_flop_per_s: float = math.inf,
    objects: Path | None = None,
) -> dict[OpClass, Yardstick]:
    """Write a library of a kernel of each op class at `path`, milliseconds each where convolutions reach that rate.

    Raises:
        AutotmError: as `make_yardsticks`.
    """
    functions = co_runner_functions(contraction_flop_per_s)
    made = {op_class: _made(schedule(function, target, threads)) for op_class, function in functions.items()}
    build_library({str(op_class): each.function for op_class, each in made.items()}, target, path, objects)
    return {op_class: each.yardstick for op_class, each in made.items()}


def scheduled_layer(layer: Layer, target: tvm.target.Target, threads: int) -> ScheduledKernel:
    """The layer as a kernel that takes image, weights and result."""
    image, weights, _ = layer.shapes
    x, w = te.placeholder(image, "float32", "x"), te.placeholder(weights, "float32", "w")
    y = conv2d(x, w, (1, 1), (1, 1, 1, 1))
    return schedule(te.create_prim_func([x, w, y]), target, threads)


def _made(kernel: ScheduledKernel) -> _Made:
    return _Made(kernel.func, kernel.flops)
