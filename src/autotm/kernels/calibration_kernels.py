"""Kernels of known work for calibration: convolutions, one of each op class, a loop of multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import te, tirx

from autotm.kernels import along_axis, contractions, normalization, tir, windowed
from autotm.kernels.compiler import build_library
from autotm.kernels.compute_rates import MULTIPLY_ADDS, CalibrationKernel, CalibrationKernels
from autotm.kernels.schedules.dispatch import schedule
from autotm.kernels.target import target_info
from autotm.model.graph import OpClass

# How fast the cores multiply and add at best: a loop that touches registers only.

_STEPS = 2_000_000  # Some 10 ms: long against starting the threads.


def multiply_add_loop(target: tvm.target.Target, threads: int) -> tuple[tirx.PrimFunc, int]:
    """Return a loop of float32 multiply-adds in registers on so many threads, and its floating-point operations.

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
        factor = tir.constant(0.999, info.lanes)

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


def _layer(batch: int, extent: int, channels: int, features: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of image, weights and result of a 3 x 3 convolution that keeps its image's size."""
    image = (batch, extent, extent)
    return (*image, channels), (3, 3, channels, features), (*image, features)


_LAYERS = (_layer(8, 56, 64, 64), _layer(8, 28, 128, 128), _layer(8, 14, 256, 256), _layer(8, 28, 96, 128))
"""Middle layers of the zoo's networks: large enough to reach the cores' rate, small enough to take a few ms."""

_IMAGES, _SLOW_FLOP_PER_S = 8, 5e9
"""Images in a kernel's operands: many more bytes than the near caches hold, and a call takes milliseconds. A processor
slower than this rate is emulated in software and would take seconds: it gets one image."""
_WINDOW = ((1, 1), (1, 1, 1, 1))
"""Stride and padding of convolutions."""


def co_runner_functions(contraction_flop_per_s: float = math.inf) -> dict[OpClass, tirx.PrimFunc]:
    """Return an unscheduled function of each op class, milliseconds a call if convolutions reach that rate."""
    images = _IMAGES if contraction_flop_per_s >= _SLOW_FLOP_PER_S else 1
    image, weights, result = _layer(images, 56, 64, 64)
    square = (96 * images, 96 * images)
    large = (images, 56, 56, 256)  # 3 MB an image: far beyond the near caches.
    half, channels = (*large[:3], large[3] // 2), large[3:]

    def total(one: te.Tensor, other: te.Tensor) -> te.Tensor:
        return te.compute(large, lambda *index: one(*index) + other(*index), name="total")

    def row_sums(x: te.Tensor) -> te.Tensor:
        channel = te.reduce_axis((0, large[-1]), "c")
        return te.compute(large[:-1], lambda *index: te.sum(x(*index, channel), axis=channel), name="sums")

    functions: dict[OpClass, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
        OpClass.CONV_FORWARD: (lambda x, w: contractions.conv2d(x, w, *_WINDOW), (image, weights)),
        OpClass.CONV_DATA_GRADIENT: (
            lambda dy, w: contractions.conv2d_data_gradient(dy, w, image, *_WINDOW),
            (result, weights),
        ),
        OpClass.CONV_WEIGHT_GRADIENT: (
            lambda x, dy: contractions.conv2d_weight_gradient(x, dy, weights, *_WINDOW),
            (image, result),
        ),
        OpClass.MATMUL: (contractions.matmul, (square, square)),
        OpClass.ELEMENTWISE: (total, (large, large)),
        OpClass.REDUCTION: (row_sums, (large,)),
        OpClass.WINDOW: (lambda x: windowed.max_pool2d(x, (3, 3), (2, 2), (0, 0, 0, 0)), (large,)),
        OpClass.WINDOW_GRADIENT: (
            lambda dy: windowed.avg_pool2d_gradient(dy, large, (3, 3), (1, 1), (1, 1, 1, 1)),
            (large,),
        ),
        OpClass.NORMALIZATION: (lambda x: normalization.statistics(x, 1e-5), (large,)),
        OpClass.NORMALIZATION_GRADIENT: (normalization.data_gradient, (large, large, *[channels] * 5)),
        OpClass.DATA_MOVEMENT: (lambda *parts: along_axis.concat(parts, 3), (half, half)),
    }
    return {op_class: _function(*function) for op_class, function in functions.items()}


def _function(compute: Callable[..., Any], shapes: Sequence[Sequence[int]]) -> tirx.PrimFunc:
    """Return a function of float32 tensors of these shapes: inputs, then outputs."""
    inputs = [te.placeholder(shape, "float32", f"x{index}") for index, shape in enumerate(shapes)]
    outputs = compute(*inputs)
    return te.create_prim_func([*inputs, *(outputs if isinstance(outputs, list) else [outputs])])


def make_rate_kernels(
    target: tvm.target.Target, threads: int, path: Path, objects: Path | None = None
) -> CalibrationKernels:
    """Write a library of what tells the cores' rate at `path`; `objects` is a folder that keeps machine code for later.

    Raises:
        AutotmError: there is no C compiler, or linking failed.
    """
    functions = {
        f"layer_{index}": _function(lambda x, w: contractions.conv2d(x, w, *_WINDOW), shapes[:2])
        for index, shapes in enumerate(_LAYERS)
    }
    further = {MULTIPLY_ADDS: multiply_add_loop(target, threads)}
    return _written(functions, target, threads, path, objects, further)


def make_co_runners(
    target: tvm.target.Target,
    threads: int,
    path: Path,
    contraction_flop_per_s: float = math.inf,
    objects: Path | None = None,
) -> CalibrationKernels:
    """Write a library of a kernel of each op class at `path`, milliseconds each where convolutions reach that rate.

    Raises:
        AutotmError: as `make_rate_kernels`.
    """
    functions = {str(op_class): each for op_class, each in co_runner_functions(contraction_flop_per_s).items()}
    return _written(functions, target, threads, path, objects, {})


def _written(
    functions: Mapping[str, tirx.PrimFunc],
    target: tvm.target.Target,
    threads: int,
    path: Path,
    objects: Path | None,
    further: Mapping[str, tuple[tirx.PrimFunc, int]],
) -> CalibrationKernels:
    """Build a library of functions, and of `further` ones, scheduled already, with their floating-point operations."""
    kernels = {symbol: schedule(function, target, threads) for symbol, function in functions.items()}
    known = {symbol: (kernel.func, kernel.flops) for symbol, kernel in kernels.items()} | dict(further)
    build_library({symbol: function for symbol, (function, _) in known.items()}, target, path, objects)
    return CalibrationKernels(
        {
            symbol: CalibrationKernel(tuple(map(tir.extents, function.params)), flops)
            for symbol, (function, flops) in known.items()
        }
    )
