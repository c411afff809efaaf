"""Kernels of known work for calibration: convolutions, one of each op class, a loop of multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tvm
from tvm import te, tirx

from autotm.kernels import along_axis, contractions, normalization, tir, windowed
from autotm.kernels.compiler import build_library
from autotm.kernels.contractions import conv2d
from autotm.kernels.library import aligned_empty
from autotm.kernels.passes import machine_code
from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule
from autotm.kernels.target import target_info
from autotm.kernels.yardsticks import MULTIPLY_ADDS, Yardstick, Yardsticks
from autotm.model.graph import OpClass

# How fast the cores multiply and add at best: a loop that touches registers only.

_STEPS = 2_000_000


def register_loop(target: tvm.target.Target, threads: int) -> tuple[Callable[[], object], int]:
    """The compiled loop on memory of its own, and its floating-point operations."""
    function, flops = multiply_add_loop(target, threads)
    (result,) = function.params
    argument = tvm.runtime.from_dlpack(aligned_empty([int(extent) for extent in result.shape], "float32"))
    return partial(machine_code({"main": function}, target)["main"], argument), flops


def multiply_add_loop(target: tvm.target.Target, threads: int) -> tuple[tirx.PrimFunc, int]:
    """A loop of float32 multiply-adds in registers on so many threads, and its floating-point operations.

    It takes an array that its sums start from and end in.
    """
    info = target_info(target)
    chains = info.registers * 3 // 4
    result = tirx.decl_buffer((tirx.IntImm("int64", threads * chains * info.lanes),), "float32", name="result")

    def task(index: tir.Index) -> tirx.Stmt:
        sums = tir.Registers(chains, info.lanes)
        places = [(c, c * info.lanes) for c in range(chains)]
        begin = index * (chains * info.lanes)
        value = [tir.load(result, begin + at, info.lanes) for _, at in places]
        factor = tir.splat(tirx.FloatImm("float32", 0.999), info.lanes)

        def step(_: tir.Index) -> tirx.Stmt:
            return tir.sequence(
                [sums.set(c, 0, sums.get(c, 0, info.lanes) * factor + factor, info.lanes) for c, _ in places]
            )

        return tir.sequence(
            [
                sums.declare(),
                *(sums.set(c, 0, value[c], info.lanes) for c, _ in places),
                tir.loop(_STEPS, step, "step"),
                *(tir.store(result, begin + at, sums.get(c, 0, info.lanes), info.lanes) for c, at in places),
            ]
        )

    body = tir.parallel(threads, task, "task")
    function = tirx.PrimFunc([result], body).with_attr("global_symbol", "main")
    return function, 2 * threads * chains * info.lanes * _STEPS


# Kernels to run beside something whose cost to them is in question: one of each op class.


@dataclass(frozen=True)
class Layer:
    """A 3 x 3 convolution with padding 1 that keeps its image's size."""

    batch: int
    image: int
    channels: int
    features: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of image, weights and result."""
        image = (self.batch, self.image, self.image)
        return (*image, self.channels), (3, 3, self.channels, self.features), (*image, self.features)


LAYERS = (Layer(8, 56, 64, 64), Layer(8, 28, 128, 128), Layer(8, 14, 256, 256), Layer(8, 28, 96, 128))
"""Middle layers of the zoo's networks: large enough to reach the cores' rate, small enough to take a few ms."""

_IMAGES, _SLOW_FLOP_PER_S = 8, 5e9
"""Of a kernel's operands, so that they are far beyond the near caches and a call takes milliseconds. A processor that
computes more slowly is emulated in software, and takes seconds for as many: there it is one."""
_STRIDE, _PADDING = (1, 1), (1, 1, 1, 1)
_POOL = ((3, 3), (2, 2), (0, 0, 0, 0))
_MEAN = ((3, 3), (1, 1), (1, 1, 1, 1))


def co_runner_functions(contraction_flop_per_s: float = math.inf) -> dict[OpClass, tirx.PrimFunc]:
    """A function of each op class, unscheduled: milliseconds a call where convolutions reach that rate."""
    images = _IMAGES if contraction_flop_per_s >= _SLOW_FLOP_PER_S else 1
    return {op_class: te.create_prim_func(make(images)) for op_class, make in _MAKE.items()}


def _inputs(*shapes: Sequence[int]) -> list[te.Tensor]:
    return [te.placeholder(shape, "float32", f"x{index}") for index, shape in enumerate(shapes)]


def _shapes(images: int) -> tuple[tuple[int, ...], ...]:
    return replace(LAYERS[0], batch=images).shapes


def _streamed(images: int) -> tuple[int, ...]:
    """3 MB an image: far beyond the near caches."""
    return (images, 56, 56, 256)


def _conv_forward(images: int) -> list[te.Tensor]:
    image, weights, _ = _shapes(images)
    x, w = _inputs(image, weights)
    return [x, w, contractions.conv2d(x, w, _STRIDE, _PADDING)]


def _conv_data_gradient(images: int) -> list[te.Tensor]:
    image, weights, result = _shapes(images)
    dy, w = _inputs(result, weights)
    return [dy, w, contractions.conv2d_data_gradient(dy, w, image, _STRIDE, _PADDING)]


def _conv_weight_gradient(images: int) -> list[te.Tensor]:
    image, weights, result = _shapes(images)
    x, dy = _inputs(image, result)
    return [x, dy, contractions.conv2d_weight_gradient(x, dy, weights, _STRIDE, _PADDING)]


def _matmul(images: int) -> list[te.Tensor]:
    a, b = _inputs(*[(96 * images, 96 * images)] * 2)
    return [a, b, contractions.matmul(a, b)]


def _sum(images: int) -> list[te.Tensor]:
    one, other = _inputs(_streamed(images), _streamed(images))
    return [one, other, te.compute(_streamed(images), lambda *index: one(*index) + other(*index), name="total")]


def _row_sums(images: int) -> list[te.Tensor]:
    (x,) = _inputs(_streamed(images))
    channel = te.reduce_axis((0, _streamed(images)[-1]), "c")
    return [x, te.compute(_streamed(images)[:-1], lambda *index: te.sum(x(*index, channel), axis=channel), name="sums")]


def _max_pool(images: int) -> list[te.Tensor]:
    (x,) = _inputs(_streamed(images))
    return [x, windowed.max_pool2d(x, *_POOL)]


def _avg_pool_gradient(images: int) -> list[te.Tensor]:
    (dy,) = _inputs(_streamed(images))
    return [dy, windowed.avg_pool2d_gradient(dy, _streamed(images), *_MEAN)]


def _statistics(images: int) -> list[te.Tensor]:
    (x,) = _inputs(_streamed(images))
    return [x, *normalization.statistics(x, 1e-5)]


def _batch_norm_gradient(images: int) -> list[te.Tensor]:
    arguments = _inputs(_streamed(images), _streamed(images), *[_streamed(images)[3:]] * 5)
    return [*arguments, normalization.data_gradient(*arguments)]


def _concat(images: int) -> list[te.Tensor]:
    *places, channels = _streamed(images)
    half = (*places, channels // 2)
    parts = _inputs(half, half)
    return [*parts, along_axis.concat(parts, 3)]


_MAKE: dict[OpClass, Callable[[int], list[te.Tensor]]] = {
    OpClass.CONV_FORWARD: _conv_forward,
    OpClass.CONV_DATA_GRADIENT: _conv_data_gradient,
    OpClass.CONV_WEIGHT_GRADIENT: _conv_weight_gradient,
    OpClass.MATMUL: _matmul,
    OpClass.ELEMENTWISE: _sum,
    OpClass.REDUCTION: _row_sums,
    OpClass.WINDOW: _max_pool,
    OpClass.WINDOW_GRADIENT: _avg_pool_gradient,
    OpClass.NORMALIZATION: _statistics,
    OpClass.NORMALIZATION_GRADIENT: _batch_norm_gradient,
    OpClass.DATA_MOVEMENT: _concat,
}


# The kernels of known work that calibration times: convolutions, one kernel of each op class, multiply-adds.


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
