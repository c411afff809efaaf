"""Operators of ONNX as Relax has gradients and fast kernels for them, where TVM's importer has others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotm.model.files import BadInputError

Array = npt.NDArray[Any]
op = relax.op


@dataclass(frozen=True)
class Node:
    """One node to be imported.

    Attributes:
        builder: where it is written.
        operands: None where an optional one is left out.
        known: values of those that are known before the step.
        attributes: by name.
    """

    builder: relax.BlockBuilder
    operands: Sequence[relax.Expr | None]
    known: Sequence[Array | None]
    attributes: Mapping[str, Any]

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        return self.builder.emit(expression)

    def shape(self, index: int = 0) -> list[int]:
        """Of an operand."""
        return [int(extent) for extent in self.operands[index].ty.shape]

    def whole_numbers(self, index: int, attribute: str) -> list[int] | None:
        """Those of an operand, or of the attribute that older versions have for it."""
        if len(self.known) > index and self.known[index] is not None:
            return [int(item) for item in self.known[index].ravel()]
        if len(self.operands) > index and self.operands[index] is not None:
            raise BadInputError(f"its {attribute} depend on the step's inputs; kernels are compiled for fixed ones")
        found = self.attributes.get(attribute)
        return None if found is None else [int(item) for item in found]

    def number(self, index: int, attribute: str, otherwise: float | None = None) -> float | None:
        """As `whole_numbers`, one number."""
        if len(self.known) > index and self.known[index] is not None:
            return float(self.known[index].item())
        return self.attributes.get(attribute, otherwise)


def _batch_norm(node: Node) -> relax.Expr:
    """By the statistics of the file: a scale and a shift of each channel."""
    if node.attributes.get("training_mode"):
        raise BadInputError("is in training mode, which is not imported; export the network with model.eval()")
    if node.known[3] is None or node.known[4] is None:
        raise BadInputError("its statistics depend on the step's inputs; they must be initializers")
    x, weight, bias = node.operands[:3]
    mean, variance = (np.asarray(value, np.float64) for value in node.known[3:5])
    inverse = 1 / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    scale = node.emit(op.multiply(weight, relax.const(inverse.astype("float32"))))
    moved = node.emit(op.multiply(weight, relax.const((-mean * inverse).astype("float32"))))
    shift = node.emit(op.add(moved, bias))
    shape = [1, -1] + [1] * (len(node.shape()) - 2)
    scaled = node.emit(op.multiply(x, node.emit(op.reshape(scale, shape))))
    return op.add(scaled, node.emit(op.reshape(shift, shape)))


def _clip(node: Node) -> relax.Expr:
    low, high = node.number(1, "min"), node.number(2, "max")
    x, *bounds = (*node.operands, None, None)[:3]
    if all(bound is None or node.known[1 + index] is not None for index, bound in enumerate(bounds)):
        if str(x.ty.dtype.dtype) == "float32":
            return op.clip(x, -np.inf if low is None else low, np.inf if high is None else high)
        low, high = (None if bound is None else relax.const(bound, str(x.ty.dtype.dtype)) for bound in (low, high))
        bounds = [low, high]
    for bound, rule in zip(bounds, (op.maximum, op.minimum), strict=True):
        x = x if bound is None else node.emit(rule(x, bound))
    return x


def _cumulative_sum(node: Node) -> relax.Expr:
    (axis,) = node.whole_numbers(1, "axis")
    x, is_turned = node.operands[0], bool(node.attributes.get("reverse"))
    x = node.emit(op.flip(x, axis)) if is_turned else x
    found = node.emit(op.cumsum(x, axis, exclusive=bool(node.attributes.get("exclusive"))))
    return op.flip(found, axis) if is_turned else found


def _dropout(node: Node) -> relax.Expr:
    if node.number(2, "training_mode", 0.0):
        raise BadInputError("is in training mode, which is not imported; export the network with model.eval()")
    return node.operands[0]


def _einsum(node: Node) -> relax.Expr:
    return op.einsum(tuple(node.operands), node.attributes["equation"].decode().replace(" ", ""))


def _gather(node: Node) -> relax.Expr:
    """Rows of a table, or, where their places are known and follow one another, a slice of it."""
    table, places = node.operands[:2]
    shape = node.shape()
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    extent, known = shape[axis], node.known[1]
    if known is None:
        dtype = "int32"
        places = places if str(places.ty.dtype.dtype) == dtype else node.emit(op.astype(places, dtype))
        is_from_end = node.emit(op.less(places, relax.const(0, dtype)))
        from_end = node.emit(op.add(places, relax.const(extent, dtype)))
        return op.take(table, node.emit(op.where(is_from_end, from_end, places)), axis=axis, mode="fast")
    if known.size and not (-extent <= known.min() and known.max() < extent):
        raise BadInputError(f"takes places {known.min()} to {known.max()} of an axis of extent {extent}")
    known = np.where(known < 0, known + extent, known)
    first = int(known.flat[0])
    if not np.array_equal(known.ravel(), np.arange(first, first + known.size)):
        return op.take(table, relax.const(known.astype("int32")), axis=axis, mode="fast")
    part = table if known.size == extent else node.emit(op.strided_slice(table, [axis], [first], [first + known.size]))
    return op.reshape(part, [*shape[:axis], *known.shape, *shape[axis + 1 :]])


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(node: Node) -> relax.Expr:
    rank, widths = len(node.shape()), node.whole_numbers(1, "pads")
    axes = node.whole_numbers(3, "axes") or list(range(rank))
    by_axis = {axis % rank: pair for axis, *pair in zip(axes, widths[: len(axes)], widths[len(axes) :], strict=True)}
    mode = _PAD_MODES[node.attributes.get("mode", b"constant").decode()]
    pairs = [by_axis.get(axis, [0, 0]) for axis in range(rank)]
    x = node.operands[0]
    if any(width < 0 for pair in pairs for width in pair):
        ends = [extent + min(after, 0) for extent, (_, after) in zip(node.shape(), pairs, strict=True)]
        x = node.emit(op.strided_slice(x, list(range(rank)), [max(-before, 0) for before, _ in pairs], ends))
    flat = [max(width, 0) for pair in pairs for width in pair]
    return op.nn.pad(x, flat, mode, node.number(2, "value", 0.0)) if any(flat) else x


def _tile(node: Node) -> relax.Expr:
    return op.tile(node.operands[0], node.whole_numbers(1, "repeats"))


RULES: dict[str, Callable[[Node], relax.Expr]] = {
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "CumSum": _cumulative_sum,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Gather": _gather,
    "Pad": _pad,
    "Tile": _tile,
}
"""By name of the operator; the others are TVM's."""

FIXED = {
    "BatchNormalization": (3, 4), "Clip": (1, 2), "Dropout": (1, 2), "OneHot": (2,), "Pad": (2,), "Resize": (1, 2),
    "ScatterElements": (2,), "ScatterND": (2,), "Upsample": (1,),
}  # fmt: skip
"""Operands that are never trained: an initializer there keeps its value."""
