"""Networks of images whose blocks are computed or not, in Relax, each with the same in PyTorch: BlockDrop, SkipNet.

A normalisation is a scale and a shift of channels at inference; the scales are part of the weights of convolutions
here, the shifts are their biases. Used by `control_flow.py` and by the tests.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import tvm
from torch.nn import functional
from tvm import relax

from autotm.zoo.functions import FunctionWriter, as_module
from recurrent_models import Array

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
    """

    size: int = 32
    blocks: tuple[int, ...] = (5, 5, 5)
    channels: int = 16
    classes: int = 10

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
        kinds = {"x": (batch, 3, self.size, self.size), "kept": (batch, len(self.widths))}
        main = _writer("main", kinds, self.shapes, (batch, self.classes))
        emit, op = main.emit, relax.op
        x, kept, *rest = main.params.values()
        weights = iter(rest)
        x = emit(op.nn.relu(_convolved(main, x, weights, padding=1)))
        for index, (before, after) in enumerate(self.widths):
            stride, shortcut = 1, x
            if before != after:
                stride, pooled = 2, emit(op.nn.avg_pool2d(x, (2, 2), (2, 2)))
                shortcut = emit(op.nn.pad(pooled, [0, 0, 0, after - before, 0, 0, 0, 0]))
            own = emit(op.strided_slice(kept, axes=[1], begin=[index], end=[index + 1]))
            mask = emit(op.reshape(own, (batch, 1, 1, 1)))

            convs = [next(weights) for _ in range(4)]
            is_kept = emit(op.greater(emit(op.max(own)), relax.const(0, "float32")))
            computed = functools.partial(_basic_block, main, x, shortcut, stride, convs, mask)
            x = main.branch(is_kept, computed, functools.partial(emit, op.nn.relu(shortcut)))
        return as_module({main: main.function(emit(op.matmul(emit(op.mean(x, axis=[2, 3])), next(weights))))})

    def arguments(self, kept: Array) -> list[Array]:
        """Return a seeded image for each row of the decisions, these, and seeded weights."""
        x, *weights = _seeded([(len(kept), 3, self.size, self.size), *self.shapes])
        return [x, kept.astype("float32"), *weights]

    def in_torch(self, x: torch.Tensor, kept: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        """Compute it with branches of Python."""
        weights = iter(given)
        x = functional.relu(functional.conv2d(x, next(weights), padding=1) + next(weights))
        for index, (before, after) in enumerate(self.widths):
            first, first_bias, second, second_bias = (next(weights) for _ in range(4))
            shortcut, stride = x, 1 if before == after else 2
            if before != after:
                shortcut = functional.pad(functional.avg_pool2d(x, 2), (0, 0, 0, 0, 0, after - before))
            if kept[:, index].max() > 0:
                y = functional.relu(functional.conv2d(x, first, stride=stride, padding=1) + first_bias)
                y = functional.conv2d(y, second, padding=1) + second_bias
                shortcut = shortcut + y * kept[:, index].reshape(-1, 1, 1, 1)
            x = functional.relu(shortcut)
        return x.mean(dim=(2, 3)) @ next(weights)


@dataclass(frozen=True)
class SkipNet:
    """A residual network of bottlenecks; before each but the first, a gate with an LSTM decides whether to skip it.

    Attributes:
        size: height and width of its images.
        blocks: of each stage.
        channels: of the stem and within the blocks of the first stage, which have 4 times as many outside.
    """

    size: int = 224
    blocks: tuple[int, ...] = (3, 4, 23, 3)
    channels: int = 64
    classes: int = 1000

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
        kinds = {"x": (batch, 3, self.size, self.size), "forced": (len(self.layers),)}
        main = _writer("main", kinds, self.shapes, (batch, self.classes))
        emit, op = main.emit, relax.op
        x, forced, *rest = main.params.values()
        weights = iter(rest)
        x = emit(op.nn.relu(_convolved(main, x, weights, stride=2, padding=3)))
        x = emit(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)))
        cell, cell_bias, projection = (next(weights) for _ in range(3))
        c = h = relax.const(np.zeros((batch, _GATE), "float32"))
        for index, (before, within, stride) in enumerate(self.layers):
            inner = [next(weights) for _ in range(6)]
            shortcut = x
            if before != 4 * within or stride > 1:
                shortcut = _convolved(main, x, weights, stride)

            computed = functools.partial(_bottleneck, main, x, shortcut, stride, inner)
            if not index:
                x = computed()
                continue
            word = emit(op.matmul(emit(op.mean(x, axis=[2, 3])), next(weights)))
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
        return as_module({main: main.function(emit(op.matmul(emit(op.mean(x, axis=[2, 3])), next(weights))))})

    def arguments(self, batch: int, forced: Array) -> list[Array]:
        """Return seeded images, what is added before the gates, and seeded weights."""
        x, *weights = _seeded([(batch, 3, self.size, self.size), *self.shapes])
        return [x, forced.astype("float32"), *weights]

    def in_torch(self, x: torch.Tensor, forced: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        """Compute it with branches of Python."""
        weights = iter(given)
        x = functional.relu(functional.conv2d(x, next(weights), stride=2, padding=3) + next(weights))
        x = functional.max_pool2d(x, 3, 2, 1)
        cell, cell_bias, projection = (next(weights) for _ in range(3))
        c = h = torch.zeros(len(x), _GATE)
        for index, (before, within, stride) in enumerate(self.layers):
            own, shortcut = [next(weights) for _ in range(6)], x
            if before != 4 * within or stride > 1:
                shortcut = functional.conv2d(x, next(weights), stride=stride) + next(weights)
            is_kept = True
            if index:
                word = x.mean(dim=(2, 3)) @ next(weights)
                enter, keep, new, leave = (torch.cat([word, h], dim=1) @ cell + cell_bias).chunk(4, dim=1)
                c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
                h = leave.sigmoid() * c.tanh()
                is_kept = (h @ projection + forced[index]).sigmoid().mean() > 0.5  # noqa: PLR2004
            if is_kept:
                y = functional.relu(functional.conv2d(x, own[0]) + own[1])
                y = functional.relu(functional.conv2d(y, own[2], stride=stride, padding=1) + own[3])
                shortcut = shortcut + functional.conv2d(y, own[4]) + own[5]
            x = functional.relu(shortcut)
        return x.mean(dim=(2, 3)) @ next(weights)


def _conv(channels: int, outputs: int, kernel: int) -> tuple[Shape, Shape]:
    """Return the shapes of a convolution's weights and of its bias."""
    return (outputs, channels, kernel, kernel), (1, outputs, 1, 1)


def _seeded(shapes: Sequence[Shape]) -> list[Array]:
    """Return arrays, those after the first so small that what they are multiplied with keeps its size."""
    random = np.random.default_rng(0)
    x, *weights = (random.standard_normal(shape) for shape in shapes)
    scales = [(np.prod(w.shape[1:]) if w.ndim == 4 and w.shape[0] > 1 else w.shape[0]) ** -0.5 for w in weights]  # noqa: PLR2004
    return [x.astype("float32"), *((w * s).astype("float32") for w, s in zip(weights, scales, strict=True))]


def _writer(name: str, first: dict[str, Shape], weights: Sequence[Shape], result: Shape) -> FunctionWriter:
    shapes = {**first, **{f"weight{index}": shape for index, shape in enumerate(weights)}}
    return FunctionWriter(name, {key: (shape, "float32") for key, shape in shapes.items()}, (result, "float32"))


def _basic_block(
    writer: FunctionWriter, x: relax.Var, shortcut: relax.Var, stride: int, convs: list[relax.Var], mask: relax.Var
) -> relax.Var:
    emit, op, weights = writer.emit, relax.op, iter(convs)
    y = emit(op.nn.relu(_convolved(writer, x, weights, stride, padding=1)))
    y = emit(op.multiply(_convolved(writer, y, weights, padding=1), mask))
    return emit(op.nn.relu(emit(op.add(shortcut, y))))


def _bottleneck(
    writer: FunctionWriter, x: relax.Var, shortcut: relax.Var, stride: int, convs: list[relax.Var]
) -> relax.Var:
    emit, op, weights = writer.emit, relax.op, iter(convs)
    y = emit(op.nn.relu(_convolved(writer, x, weights)))
    y = emit(op.nn.relu(_convolved(writer, y, weights, stride, padding=1)))
    return emit(op.nn.relu(emit(op.add(shortcut, _convolved(writer, y, weights)))))


def _convolved(
    writer: FunctionWriter, x: relax.Var, weights: Iterator[relax.Var], stride: int = 1, padding: int = 0
) -> relax.Var:
    made = writer.emit(relax.op.nn.conv2d(x, next(weights), strides=stride, padding=padding))
    return writer.emit(relax.op.add(made, next(weights)))
