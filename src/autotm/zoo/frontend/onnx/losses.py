"""Losses for files that compute scores only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotm.model.step import Initial

Array = npt.NDArray[Any]
op = relax.op


@dataclass(frozen=True)
class Loss:
    """A loss of a file's first output and an input of its own, in the shape of that output.

    Attributes:
        argument: name of that input.
        initial: how it is drawn.
        emit: emits the loss, from the output and the input.
        compute: computes it in NumPy, for comparisons.
    """

    argument: str
    initial: Initial
    emit: Callable[[relax.BlockBuilder, relax.Expr, relax.Expr], relax.Expr]
    compute: Callable[[Array, Array], Array]


def _emit_cross_entropy(builder: relax.BlockBuilder, scores: relax.Expr, labels: relax.Expr) -> relax.Expr:
    shape = [int(extent) for extent in scores.ty.shape]
    rows, classes = math.prod(shape[:-1]), shape[-1]
    # Of rank two the classes lie last in every layout, as the labels do that are drawn.
    flat = [builder.emit(op.reshape(item, (rows, classes))) for item in (scores, labels)]
    products = op.multiply(builder.emit(op.nn.log_softmax(flat[0], axis=-1)), flat[1])
    total = builder.emit(op.sum(builder.emit(products)))
    return builder.emit(op.multiply(total, relax.const(-1.0 / rows, "float32")))


def _cross_entropy(scores: Array, labels: Array) -> Array:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.asarray(-(logarithms * labels).sum(axis=-1).mean())


def _emit_mse(builder: relax.BlockBuilder, output: relax.Expr, targets: relax.Expr) -> relax.Expr:
    difference = builder.emit(op.subtract(output, targets))
    total = builder.emit(op.sum(builder.emit(op.multiply(difference, difference))))
    return builder.emit(op.multiply(total, relax.const(1.0 / math.prod(map(int, output.ty.shape)), "float32")))


def _mse(output: Array, targets: Array) -> Array:
    return np.asarray(np.square(output - targets).mean())


LOSSES = {
    "cross_entropy": Loss("labels", Initial("one_hot"), _emit_cross_entropy, _cross_entropy),
    "mse": Loss("targets", Initial("normal"), _emit_mse, _mse),
}
"""By name, as PyTorch's functions with their defaults: the mean cross-entropy of softmax and one-hot labels, classes
along the last axis; the mean squared difference."""
