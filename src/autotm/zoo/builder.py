"""`NetworkBuilder`: layers of a network, written in Relax."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from autotm.model.graph import Initial
from autotm.model.training import Sgd, Training
from autotm.zoo.network import Network

Size = int | tuple[int, int]


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


class NetworkBuilder:
    """Writes one network layer by layer, in float32; images are (batch, height, width, channels).

    What layers take and give are expressions of Relax, so `emit` may stand between any two.
    """

    def __init__(self, name: str, batch: int, learning_rate: float) -> None:
        """Start an empty network, trained with plain SGD.

        Args:
            name: in paths and records.
            batch: samples per step.
            learning_rate: of the rule, at least 0.

        Raises:
            BadInputError: the rate is below 0, when the network is closed.
        """
        self._name = name
        self._batch = batch
        self._learning_rate = learning_rate
        self._relax = relax.BlockBuilder()
        self._inputs: dict[str, tuple[relax.Var, Initial]] = {}
        self._parameters: dict[str, tuple[relax.Var, Initial]] = {}
        self._scope = self._relax.function("main")
        self._scope.__enter__()
        self._dataflow = self._relax.dataflow()
        self._dataflow.__enter__()

    def input(self, name: str, shape: tuple[int, ...], initial: Initial, dtype: str = "float32") -> relax.Var:
        """Add an argument that training leaves alone: data, labels.

        Args:
            name: distinct from those of others.
            shape: the batch first.
            initial: what it holds before the first step.
            dtype: by NumPy's name.
        """
        var = relax.Var(name, relax.TensorType(shape, dtype))
        self._inputs[name] = (var, initial)
        return var

    def parameter(self, kind: str, shape: tuple[int, ...], initial: Initial) -> relax.Var:
        """Add an argument that training updates, float32, named by kind and creation order, e.g. `conv_weight_0`.

        Args:
            kind: first part of its name.
            shape: fixed.
            initial: what it holds before the first step.
        """
        name = f"{kind}_{len(self._parameters)}"
        var = relax.Var(name, relax.TensorType(shape, "float32"))
        self._parameters[name] = (var, initial)
        return var

    def conv(
        self,
        x: relax.Expr,
        filters: int,
        kernel: Size,
        stride: int = 1,
        padding: Size = 0,
        *,
        relu: bool = True,
        groups: int = 1,
    ) -> relax.Var:
        """Convolve, add a bias, and apply ReLU by default; weights are He-normal.

        Args:
            x: (batch, height, width, channels).
            filters: channels of the result.
            kernel: height and width of a filter, in pixels.
            stride: pixels between filters, in both directions.
            padding: rows above and below, columns left and right, of zeros.
            relu: whether a ReLU follows.
            groups: of channels that are convolved apart.

        Returns:
            (batch, height', width', filters), height' = (height + 2 padding - kernel) // stride + 1, width' likewise.
        """
        (height, width), (pad_height, pad_width) = _pair(kernel), _pair(padding)
        channels = self.shape(x)[-1] // groups
        scale = math.sqrt(2 / (height * width * channels))
        weight = self.parameter("conv_weight", (height, width, channels, filters), Initial("normal", scale))
        bias = self.parameter("conv_bias", (filters,), Initial("zeros"))
        pads = (pad_height, pad_width, pad_height, pad_width)
        strides = (stride, stride)
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        y = relax.op.nn.conv2d(x, weight, strides, pads, groups=groups, **layouts)
        y = self.emit(relax.op.add(self.emit(y), bias))
        return self.relu(y) if relu else y

    def dense(self, x: relax.Expr, features: int, *, relu: bool = True) -> relax.Var:
        """Multiply by a He-normal matrix, (..., width) -> (..., features), and add a bias; then ReLU by default."""
        channels = self.shape(x)[-1]
        scale = math.sqrt((2 if relu else 1) / channels)
        weight = self.parameter("dense_weight", (channels, features), Initial("normal", scale))
        bias = self.parameter("dense_bias", (features,), Initial("zeros"))
        y = self.emit(relax.op.add(self.emit(relax.op.matmul(x, weight)), bias))
        return self.relu(y) if relu else y

    def batch_norm(self, x: relax.Expr, *, relu: bool = False) -> relax.Var:
        """Normalize (batch, height, width, channels) by the batch's own statistics, epsilon 1e-5; ReLU if asked for.

        Running averages are not kept, as in the original: they are no part of the step.
        """
        channels = self.shape(x)[-1:]
        gamma = self.parameter("norm_scale", channels, Initial("ones"))
        beta = self.parameter("norm_shift", channels, Initial("zeros"))
        nothing = relax.const(np.zeros(channels, "float32"))
        results = self.emit(relax.op.nn.batch_norm(x, gamma, beta, nothing, nothing, axis=3, momentum=1.0))
        y = self.emit(relax.TupleGetItem(results, 0))
        return self.relu(y) if relu else y

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Add any operator of Relax that can be differentiated, e.g. `net.emit(relax.op.tanh(x))`."""
        return self._relax.emit(expression)

    def relu(self, x: relax.Expr) -> relax.Var:
        """Compute max(x, 0), of any shape."""
        return self.emit(relax.op.nn.relu(x))

    def layer_norm(self, x: relax.Expr) -> relax.Var:
        """Normalize along the last axis, with scale and shift."""
        width = self.shape(x)[-1]
        scale = self.parameter("norm_scale", (width,), Initial("ones"))
        shift = self.parameter("norm_shift", (width,), Initial("zeros"))
        return self.emit(relax.op.nn.layer_norm(x, scale, shift, axes=[-1]))

    def softmax(self, x: relax.Expr) -> relax.Var:
        """Compute softmax along the last axis."""
        return self.emit(relax.op.nn.softmax(x, axis=-1))

    def product(self, subscripts: str, left: relax.Expr, right: relax.Expr) -> relax.Var:
        """Multiply matrices for each index of the other axes, as `numpy.einsum` does, e.g. `bihd,bjhd->bhij`."""
        return self.emit(relax.op.einsum((left, right), subscripts))

    def scale(self, x: relax.Expr, factor: float) -> relax.Var:
        """Multiply every element by a number."""
        return self.emit(relax.op.multiply(x, relax.const(factor, "float32")))

    def reshape(self, x: relax.Expr, shape: tuple[int, ...]) -> relax.Var:
        """Give elements another shape."""
        return self.emit(relax.op.reshape(x, shape))

    def add(self, x: relax.Expr, y: relax.Expr) -> relax.Var:
        """Add two expressions of the same shape, or of shapes that NumPy would broadcast."""
        return self.emit(relax.op.add(x, y))

    def max_pool(self, x: relax.Expr, size: int, stride: int, padding: int = 0) -> relax.Var:
        """Maximize over windows of `size` x `size` pixels, `stride` apart, of (batch, height, width, channels)."""
        return self.emit(relax.op.nn.max_pool2d(x, (size, size), (stride, stride), (padding,) * 4, layout="NHWC"))

    def avg_pool(self, x: relax.Expr, size: int, stride: int, padding: int = 0) -> relax.Var:
        """Take the mean of windows as of `max_pool`; padding does not count."""
        pool = relax.op.nn.avg_pool2d(x, (size, size), (stride, stride), (padding,) * 4, layout="NHWC")
        return self.emit(pool)

    def global_mean(self, x: relax.Expr) -> relax.Var:
        """Take the mean over height and width: (batch, height, width, channels) -> (batch, channels)."""
        return self.emit(relax.op.mean(x, axis=[1, 2]))

    def flatten(self, x: relax.Expr) -> relax.Var:
        """Merge all axes but the first: (batch, ...) -> (batch, product of the others)."""
        batch, *rest = self.shape(x)
        return self.emit(relax.op.reshape(x, (batch, math.prod(rest))))

    def embedding(self, table: relax.Expr, indices: relax.Expr) -> relax.Var:
        """Look up rows of a (rows, width) table by integers in [0, rows) of any shape: (*shape, width)."""
        return self.emit(relax.op.take(table, indices, axis=0))

    def concat(self, parts: list[relax.Expr]) -> relax.Var:
        """Concatenate along the last axis: the channels."""
        return self.emit(relax.op.concat(parts, axis=len(self.shape(parts[0])) - 1))

    def floored(self, x: relax.Expr, floor: float) -> relax.Var:
        """Compute max(x, floor)."""
        return self.emit(relax.op.maximum(x, relax.const(floor, "float32")))

    def log_floored(self, x: relax.Expr, floor: float) -> relax.Var:
        """Compute log(max(x, floor)), the original's guard before its softmax."""
        return self.emit(relax.op.log(self.floored(x, floor)))

    def softmax_cross_entropy(self, scores: relax.Expr) -> Network:
        """Close the network with the mean cross-entropy of softmax(scores), (batch, classes), and one-hot labels.

        The labels are a further input, `labels`, of the shape of the scores.
        """
        batch, _ = shape = self.shape(scores)
        labels = self.input("labels", shape, Initial("one_hot"))
        log_probability = self.emit(relax.op.nn.log_softmax(scores, axis=-1))
        total = self.emit(relax.op.sum(self.emit(relax.op.multiply(log_probability, labels))))
        return self._finish(self.emit(relax.op.multiply(total, relax.const(-1.0 / batch, "float32"))))

    def sigmoid_cross_entropy(self, scores: relax.Expr) -> Network:
        """Close the network with the mean binary cross-entropy of sigmoid(scores), (batch, 1), and labels 0 or 1.

        The labels are a further input, `labels`, of the shape of the scores. Written log(1 + exp(score)) - score *
        label, where nothing overflows.
        """
        batch, _ = shape = self.shape(scores)
        labels = self.input("labels", shape, Initial("integers", 2))
        losses = relax.op.subtract(
            self.emit(relax.op.nn.softplus(scores)), self.emit(relax.op.multiply(scores, labels))
        )
        total = self.emit(relax.op.sum(self.emit(losses)))
        return self._finish(self.emit(relax.op.multiply(total, relax.const(1.0 / batch, "float32"))))

    @staticmethod
    def shape(x: relax.Expr) -> tuple[int, ...]:
        """Return the static shape of an emitted expression."""
        return tuple(int(extent) for extent in x.ty.shape)

    def _finish(self, loss: relax.Expr) -> Network:
        output = self._relax.emit_output(loss)
        self._dataflow.__exit__(None, None, None)
        arguments = [var for var, _ in (*self._inputs.values(), *self._parameters.values())]
        self._relax.emit_func_output(output, arguments)
        self._scope.__exit__(None, None, None)
        return Network(
            self._name,
            self._batch,
            self._relax.finalize(),
            {name: initial for name, (_, initial) in self._inputs.items()},
            {name: initial for name, (_, initial) in self._parameters.items()},
            Training(Sgd(self._learning_rate)),
        )
