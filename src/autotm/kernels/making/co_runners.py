"""Kernels to run beside something whose cost to them is in question: one of each op class."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import te, tirx

from autotm.kernels.operators import batch_norm, conv, data_movement, matmul, pooling
from autotm.model.step import OpClass


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
    return [x, w, conv.conv2d(x, w, _STRIDE, _PADDING)]


def _conv_data_gradient(images: int) -> list[te.Tensor]:
    image, weights, result = _shapes(images)
    dy, w = _inputs(result, weights)
    return [dy, w, conv.conv2d_data_gradient(dy, w, image, _STRIDE, _PADDING)]


def _conv_weight_gradient(images: int) -> list[te.Tensor]:
    image, weights, result = _shapes(images)
    x, dy = _inputs(image, result)
    return [x, dy, conv.conv2d_weight_gradient(x, dy, weights, _STRIDE, _PADDING)]


def _matmul(images: int) -> list[te.Tensor]:
    a, b = _inputs(*[(96 * images, 96 * images)] * 2)
    return [a, b, matmul.matmul(a, b)]


def _sum(images: int) -> list[te.Tensor]:
    one, other = _inputs(_streamed(images), _streamed(images))
    return [one, other, te.compute(_streamed(images), lambda *index: one(*index) + other(*index), name="total")]


def _row_sums(images: int) -> list[te.Tensor]:
    (x,) = _inputs(_streamed(images))
    channel = te.reduce_axis((0, _streamed(images)[-1]), "c")
    return [x, te.compute(_streamed(images)[:-1], lambda *index: te.sum(x(*index, channel), axis=channel), name="sums")]


def _max_pool(images: int) -> list[te.Tensor]:
    (x,) = _inputs(_streamed(images))
    return [x, pooling.max_pool2d(x, *_POOL)]


def _avg_pool_gradient(images: int) -> list[te.Tensor]:
    (dy,) = _inputs(_streamed(images))
    return [dy, pooling.avg_pool2d_gradient(dy, _streamed(images), *_MEAN)]


def _statistics(images: int) -> list[te.Tensor]:
    (x,) = _inputs(_streamed(images))
    return [x, *batch_norm.statistics(x, 1e-5)]


def _batch_norm_gradient(images: int) -> list[te.Tensor]:
    arguments = _inputs(_streamed(images), _streamed(images), *[_streamed(images)[3:]] * 5)
    return [*arguments, batch_norm.data_gradient(*arguments)]


def _concat(images: int) -> list[te.Tensor]:
    *places, channels = _streamed(images)
    half = (*places, channels // 2)
    parts = _inputs(half, half)
    return [*parts, data_movement.concat(parts, 3)]


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
