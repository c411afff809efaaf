"""Networks of images whose blocks are computed or not, in Relax: BlockDrop, SkipNet, as in Cocktailer (OSDI 2023).

A normalisation is a scale and a shift of channels at inference; the scales are part of the weights of convolutions
here, the shifts are their biases. Images are channels first, as most systems have them, or channels last, as autotm's
kernels want them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from autotm.zoo.functions import FunctionWriter, as_module
from autotm.zoo.loop_models import Array

Shape = tuple[int, ...]
_GATE = 10
"""Width of SkipNet's gate and of its LSTM cell."""


@dataclass(frozen=True)
class BlockDrop:
    """A residual network of basic blocks; an argument says which are kept for which sample.

    Attributes:
        size: height and width of its images.
        blocks: of each stage.
        channels: of the first stage; twice as many, of images half as large, in each further one.
        channels_last: whether the images, and the channels of weights, lie so.
    """

    size: int = 32
    blocks: tuple[int, ...] = (5, 5, 5)
    channels: int = 16
    classes: int = 10
    channels_last: bool = False

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Channels before and after each block."""
        after = [self.channels << stage for stage, count in enumerate(self.blocks) for _ in range(count)]
        return list(zip([self.channels, *after], after, strict=False))

    @property
    def shapes(self) -> list[Shape]:
        """Of the weights: stem, blocks, classes."""
        shapes = [*_conv(3, self.channels, 3)]
        for before, after in self.widths:
            shapes += [*_conv(before, after, 3), *_conv(after, after, 3)]
        return [*shapes, (self.widths[-1][1], self.classes)]

    def module(self, batch: int) -> tvm.IRModule:
        """Return `main(x, kept, *weights)`: x is (batch, 3, size, size), `kept` is (batch, blocks) of 0 and 1."""
        kinds = {
            "x": _in_order((batch, 3, self.size, self.size), _CHANNELS_LAST, self.channels_last),
            "kept": (batch, len(self.widths)),
        }
        weights = [_in_order(shape, _order(shape), self.channels_last) for shape in self.shapes]
        main = _writer("main", kinds, weights, (batch, self.classes))
        emit, op = main.emit, relax.op
        images = _Images(main, self.channels_last)
        x, kept, *rest = main.params.values()
        parameters = iter(rest)
        x = emit(op.nn.relu(images.convolved(x, parameters, padding=1)))
        for index, (before, after) in enumerate(self.widths):
            stride, shortcut = 1, x
            if before != after:
                stride, pooled = 2, images.halved(x)
                shortcut = images.widened(pooled, after - before)
            own = emit(op.strided_slice(kept, axes=[1], begin=[index], end=[index + 1]))
            mask = emit(op.reshape(own, (batch, 1, 1, 1)))

            convs = [next(parameters) for _ in range(4)]
            is_kept = emit(op.greater(emit(op.max(own)), relax.const(0, "float32")))
            computed = functools.partial(_basic_block, images, x, shortcut, stride, convs, mask)
            x = main.branch(is_kept, computed, functools.partial(emit, op.nn.relu(shortcut)))
        return as_module({main: main.function(emit(op.matmul(images.mean(x), next(parameters))))})

    def arguments(self, kept: Array, seed: int = 0) -> list[Array]:
        """Return a seeded image for each row of the decisions, these, and seeded weights."""
        shapes = [(len(kept), 3, self.size, self.size), *self.shapes]
        x, *weights = _seeded(shapes, seed, self.channels_last)
        return [x, kept.astype("float32"), *weights]


@dataclass(frozen=True)
class SkipNet:
    """A residual network of bottlenecks; before each but the first, a gate with an LSTM decides whether to skip it.

    Attributes:
        size: height and width of its images.
        blocks: of each stage.
        channels: of the stem and within the blocks of the first stage, which have 4 times as many outside.
        channels_last: whether the images, and the channels of weights, lie so.
    """

    size: int = 224
    blocks: tuple[int, ...] = (3, 4, 23, 3)
    channels: int = 64
    classes: int = 1000
    channels_last: bool = False

    @property
    def layers(self) -> list[tuple[int, int, int]]:
        """Channels before and within each block, and its stride."""
        found, before = [], self.channels
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                found.append((before, self.channels << stage, 2 if stage and not block else 1))
                before = 4 * found[-1][1]
        return found

    @property
    def shapes(self) -> list[Shape]:
        """Of the weights: stem, LSTM, projection of its state, blocks with their gates, classes."""
        shapes = [*_conv(3, self.channels, 7), (2 * _GATE, 4 * _GATE), (4 * _GATE,), (_GATE, 1)]
        for index, (before, within, stride) in enumerate(self.layers):
            shapes += [*_conv(before, within, 1), *_conv(within, within, 3), *_conv(within, 4 * within, 1)]
            shapes += [*_conv(before, 4 * within, 1)] if before != 4 * within or stride > 1 else []
            shapes += [(before, _GATE)] if index else []
        return [*shapes, (4 * self.layers[-1][1], self.classes)]

    def module(self, batch: int) -> tvm.IRModule:
        """Return `main(x, forced, *weights)`: x is (batch, 3, size, size); a block's `forced` is added in its gate.

        The mean over a batch decides for all of it.
        """
        kinds = {
            "x": _in_order((batch, 3, self.size, self.size), _CHANNELS_LAST, self.channels_last),
            "forced": (len(self.layers),),
        }
        weights = [_in_order(shape, _order(shape), self.channels_last) for shape in self.shapes]
        main = _writer("main", kinds, weights, (batch, self.classes))
        emit, op = main.emit, relax.op
        images = _Images(main, self.channels_last)
        x, forced, *rest = main.params.values()
        parameters = iter(rest)
        x = emit(op.nn.relu(images.convolved(x, parameters, stride=2, padding=3)))
        x = emit(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout=images.layout))
        cell, cell_bias, projection = (next(parameters) for _ in range(3))
        c = h = relax.const(np.zeros((batch, _GATE), "float32"))
        for index, (before, within, stride) in enumerate(self.layers):
            inner = [next(parameters) for _ in range(6)]
            shortcut = x
            if before != 4 * within or stride > 1:
                shortcut = images.convolved(x, parameters, stride)

            computed = functools.partial(_bottleneck, images, x, shortcut, stride, inner)
            if not index:
                x = computed()
                continue
            word = emit(op.matmul(images.mean(x), next(parameters)))
            sums = emit(op.add(emit(op.matmul(emit(op.concat([word, h], axis=1)), cell)), cell_bias))
            parts = emit(op.split(sums, 4, axis=1))
            functions = (op.sigmoid, op.sigmoid, op.tanh, op.sigmoid)
            gates = [emit(each(emit(relax.TupleGetItem(parts, place)))) for place, each in enumerate(functions)]
            c = emit(op.add(emit(op.multiply(gates[1], c)), emit(op.multiply(gates[0], gates[2]))))
            h = emit(op.multiply(gates[3], emit(op.tanh(c))))
            own = emit(op.strided_slice(forced, axes=[0], begin=[index], end=[index + 1]))
            score = emit(op.sigmoid(emit(op.add(emit(op.matmul(h, projection)), own))))
            test = emit(op.greater(emit(op.mean(score)), relax.const(0.5, "float32")))
            x = main.branch(test, computed, functools.partial(emit, op.nn.relu(shortcut)))
        return as_module({main: main.function(emit(op.matmul(images.mean(x), next(parameters))))})

    def arguments(self, batch: int, forced: Array, seed: int = 0) -> list[Array]:
        """Return seeded images, what is added before the gates, and seeded weights."""
        shapes = [(batch, 3, self.size, self.size), *self.shapes]
        x, *weights = _seeded(shapes, seed, self.channels_last)
        return [x, forced.astype("float32"), *weights]


def _conv(channels: int, outputs: int, kernel: int) -> tuple[Shape, Shape]:
    """Return the shapes of a convolution's weights and of its bias."""
    return (outputs, channels, kernel, kernel), (1, outputs, 1, 1)


def _seeded(shapes: Sequence[Shape], seed: int, channels_last: bool) -> list[Array]:
    """Return images and weights, those after the first so small that what they are multiplied with keeps its size."""
    random = np.random.default_rng(seed)
    x, *weights = (random.standard_normal(shape) for shape in shapes)
    scales = [(np.prod(w.shape[1:]) if w.ndim == 4 and w.shape[0] > 1 else w.shape[0]) ** -0.5 for w in weights]  # noqa: PLR2004
    weights = [(w * scale).astype("float32") for w, scale in zip(weights, scales, strict=True)]
    images = _turned(x.astype("float32"), _CHANNELS_LAST, channels_last)
    return [images, *(_turned(w, _order(w.shape), channels_last) for w in weights)]


def _writer(name: str, first: dict[str, Shape], weights: Sequence[Shape], result: Shape) -> FunctionWriter:
    shapes = {**first, **{f"weight{index}": shape for index, shape in enumerate(weights)}}
    return FunctionWriter(name, {key: (shape, "float32") for key, shape in shapes.items()}, (result, "float32"))


_CHANNELS_LAST = (0, 2, 3, 1)
_WEIGHTS_CHANNELS_LAST = (2, 3, 1, 0)
"""Rows, columns, channels, outputs."""


def _order(shape: Shape) -> tuple[int, ...]:
    """Return the axes of weights or of a bias in the order that channels last has."""
    if len(shape) != 4:  # noqa: PLR2004
        return tuple(range(len(shape)))
    return _CHANNELS_LAST if shape[0] == 1 else _WEIGHTS_CHANNELS_LAST


def _in_order(shape: Shape, order: Sequence[int], channels_last: bool) -> Shape:
    return tuple(shape[axis] for axis in order) if channels_last else shape


def _turned(array: Array, order: Sequence[int], channels_last: bool) -> Array:
    return np.ascontiguousarray(array.transpose(order)) if channels_last else array


@dataclass(frozen=True)
class _Images:
    """Writes operators on images."""

    writer: FunctionWriter
    channels_last: bool

    @property
    def layout(self) -> str:
        return "NHWC" if self.channels_last else "NCHW"

    def convolved(self, x: relax.Var, weights: Iterator[relax.Var], stride: int = 1, padding: int = 0) -> relax.Var:
        layouts = {"data_layout": self.layout, "kernel_layout": "HWIO" if self.channels_last else "OIHW"}
        call = relax.op.nn.conv2d(x, next(weights), strides=stride, padding=padding, **layouts)
        return self.writer.emit(relax.op.add(self.writer.emit(call), next(weights)))

    def halved(self, x: relax.Var) -> relax.Var:
        return self.writer.emit(relax.op.nn.avg_pool2d(x, (2, 2), (2, 2), layout=self.layout))

    def widened(self, x: relax.Var, channels: int) -> relax.Var:
        widths = [0] * 6 + [0, channels] if self.channels_last else [0, 0, 0, channels, 0, 0, 0, 0]
        return self.writer.emit(relax.op.nn.pad(x, widths))

    def mean(self, x: relax.Var) -> relax.Var:
        return self.writer.emit(relax.op.mean(x, axis=[1, 2] if self.channels_last else [2, 3]))


def _basic_block(
    images: _Images, x: relax.Var, shortcut: relax.Var, stride: int, convs: list[relax.Var], mask: relax.Var
) -> relax.Var:
    emit, op, weights = images.writer.emit, relax.op, iter(convs)
    y = emit(op.nn.relu(images.convolved(x, weights, stride, padding=1)))
    y = emit(op.multiply(images.convolved(y, weights, padding=1), mask))
    return emit(op.nn.relu(emit(op.add(shortcut, y))))


def _bottleneck(images: _Images, x: relax.Var, shortcut: relax.Var, stride: int, convs: list[relax.Var]) -> relax.Var:
    emit, op, weights = images.writer.emit, relax.op, iter(convs)
    y = emit(op.nn.relu(images.convolved(x, weights)))
    y = emit(op.nn.relu(images.convolved(y, weights, stride, padding=1)))
    return emit(op.nn.relu(emit(op.add(shortcut, images.convolved(y, weights)))))
