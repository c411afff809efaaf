"""Losses for files that compute scores only."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax

from autotm.model.step import Initial

Built = tuple[relax.Var, str, relax.Var, Initial]
"""The loss; the input that it adds: its name, its variable and how it is drawn."""


def _cross_entropy(builder: relax.BlockBuilder, scores: relax.Expr) -> Built:
    """Mean cross-entropy of softmax(scores) and `labels`, one-hot in the shape of the scores, classes last."""
    shape = [int(extent) for extent in scores.ty.shape]
    rows, classes = math.prod(shape[:-1]), shape[-1]
    labels = relax.Var("labels", relax.TensorType(shape, "float32"))
    # Of rank two the classes lie last in every layout, as the labels do that are drawn.
    flat = [builder.emit(relax.op.reshape(item, (rows, classes))) for item in (scores, labels)]
    products = relax.op.multiply(builder.emit(relax.op.nn.log_softmax(flat[0], axis=-1)), flat[1])
    total = builder.emit(relax.op.sum(builder.emit(products)))
    return (
        builder.emit(relax.op.multiply(total, relax.const(-1.0 / rows, "float32"))),
        "labels",
        labels,
        Initial("one_hot"),
    )


def _mse(builder: relax.BlockBuilder, found: relax.Expr) -> Built:
    """Mean squared difference from `targets`, in the shape of the output."""
    shape = [int(extent) for extent in found.ty.shape]
    targets = relax.Var("targets", relax.TensorType(shape, "float32"))
    difference = builder.emit(relax.op.subtract(found, targets))
    total = builder.emit(relax.op.sum(builder.emit(relax.op.multiply(difference, difference))))
    scaled = relax.op.multiply(total, relax.const(1.0 / math.prod(shape), "float32"))
    return builder.emit(scaled), "targets", targets, Initial("normal")


LOSSES: dict[str, Callable[[relax.BlockBuilder, relax.Expr], Built]] = {"cross_entropy": _cross_entropy, "mse": _mse}
"""By name, as PyTorch's functions with their defaults; each of a file's first output and an input of its own."""
