"""Operators of ONNX as Relax has gradients and fast kernels for them, where TVM's importer has others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from autotm.model.errors import BadInputError
from autotm.zoo.network import Array, shape_and_dtype

op = relax.op


@dataclass(frozen=True)
class Node:
    """One node to be imported.

    Operands that are left out are None. `known` has the values of operands that are known before the step, else None.
    """

    builder: relax.BlockBuilder
    operands: Sequence[relax.Expr | None]
    known: Sequence[Array | None]
    attributes: Mapping[str, Any]
    opset: int

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        return self.builder.emit(expression)

    def shape(self, index: int = 0) -> list[int]:
        """Return the shape of an operand."""
        return [int(extent) for extent in self.operands[index].ty.shape]

    def whole_numbers(self, index: int, attribute: str) -> list[int] | None:
        """Return whole numbers of an operand, or of the attribute that older versions have for it."""
        if len(self.known) > index and self.known[index] is not None:
            return [int(item) for item in self.known[index].ravel()]
        if len(self.operands) > index and self.operands[index] is not None:
            raise BadInputError(f"its {attribute} depend on the step's inputs; kernels are compiled for fixed ones")
        numbers = self.attributes.get(attribute)
        return None if numbers is None else [int(item) for item in numbers]

    def number(self, index: int, attribute: str, otherwise: float | None = None) -> float | None:
        """Return one number, as `whole_numbers`."""
        if len(self.known) > index and self.known[index] is not None:
            return float(self.known[index].item())
        return self.attributes.get(attribute, otherwise)


def _batch_norm(node: Node) -> relax.Expr:
    """Scale and shift each channel, by the statistics of the file."""
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
    """Apply first the lower bound, then the upper one, which counts where they cross."""
    x, *bounds = (*node.operands, None, None)[:3]
    dtype = str(x.ty.dtype.dtype)
    for index, (name, rule) in enumerate((("min", op.maximum), ("max", op.minimum))):
        number = node.number(1 + index, name)
        bound = bounds[index] if number is None else relax.const(number, dtype)
        x = x if bound is None else node.emit(rule(x, bound))
    return x


def _cumulative_sum(node: Node) -> relax.Expr:
    (axis,) = node.whole_numbers(1, "axis")
    x, is_turned = node.operands[0], bool(node.attributes.get("reverse"))
    x = node.emit(op.flip(x, axis)) if is_turned else x
    sums = node.emit(op.cumsum(x, axis, exclusive=bool(node.attributes.get("exclusive"))))
    return op.flip(sums, axis) if is_turned else sums


def _gather(node: Node) -> relax.Expr:
    """Look up rows of a table, or, where their places are known and follow one another, take a slice of it."""
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
    known = np.where(known < 0, known + extent, known)
    first = int(known.flat[0])
    if not np.array_equal(known.ravel(), np.arange(first, first + known.size)):
        return op.take(table, relax.const(known.astype("int32")), axis=axis, mode="fast")
    part = table if known.size == extent else node.emit(op.strided_slice(table, [axis], [first], [first + known.size]))
    return op.reshape(part, [*shape[:axis], *known.shape, *shape[axis + 1 :]])


def _group_norm(node: Node) -> relax.Expr:
    """Normalize with scales and shifts of channels, as since version 21, or of groups, as before."""
    channels, rank = node.shape()[1], len(node.shape())
    scale, shift = (
        operand
        if node.shape(index)[0] == channels
        else node.emit(op.reshape(node.emit(op.broadcast_to(node.emit(op.reshape(operand, [-1, 1])), [
            node.shape(index)[0], channels // node.shape(index)[0]])), [channels]))
        for index, operand in enumerate(node.operands[1:3], 1)
    )  # fmt: skip
    groups, epsilon = int(node.attributes["num_groups"]), float(node.attributes.get("epsilon", 1e-5))
    return op.nn.group_norm(node.operands[0], scale, shift, groups, 1, list(range(2, rank)), epsilon)


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


def _power(node: Node) -> relax.Expr:
    """Cast the exponent to the type of the base, and raise to it."""
    base, exponent = node.operands
    if node.known[1] is not None:
        return op.power(base, relax.const(node.known[1].astype(np.float32)))
    return op.power(base, node.emit(op.astype(exponent, "float32")))


RULES: dict[str, Callable[[Node], relax.Expr]] = {
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    # The importer leaves out operands without elements.
    "Concat": lambda node: op.concat([item for item in node.operands if item is not None], node.attributes["axis"]),
    "CumSum": _cumulative_sum,
    "Dropout": lambda node: node.operands[0],  # as in inference: the importer refuses one in training mode
    "Einsum": lambda node: op.einsum(tuple(node.operands), node.attributes["equation"].decode().replace(" ", "")),
    "Gather": _gather,
    "GroupNormalization": _group_norm,
    "Pad": _pad,
    "Pow": _power,
    "Tile": lambda node: op.tile(node.operands[0], node.whole_numbers(1, "repeats")),
}
"""By name of the operator; the others are TVM's."""

_WITHOUT_KERNEL = {"Cosh", "NonMaxSuppression", "NonZero", "Compress", "Sinh", "Unique"}
"""Operators that TVM imports and cannot compile, or whose results have a shape that depends on values."""
_IGNORED = {
    "AveragePool": {"dilations": None}, "ConvTranspose": {"output_shape": None},
    "IsInf": {"detect_negative": 1, "detect_positive": 1}, "LpPool": {"dilations": None},
    "Resize": {"antialias": 0, "axes": None}, "RoiAlign": {"mode": b"avg"}, "SpaceToDepth": {"mode": b"DCR"},
}  # fmt: skip
"""Attributes that TVM's importer does not look at, and the value for which it is right all the same."""
_OF_FLOATS = {"Pow", "ReduceMax", "ReduceMin"}
"""Operators that TVM compiles for a first operand of float32 alone."""
_BROADCASTING = 7
"""The version from which slopes of PRelu are broadcast; before, a row of them is one of channels."""
_SHAPING = {"Expand", "Reshape", "Squeeze", "Tile", "Unsqueeze"}
"""Operators whose second operand decides the shape of the result."""


def check_converter(name: str, node: Node) -> None:
    """Refuse a node that TVM's importer would take for another; say what it does not see."""
    if name in _WITHOUT_KERNEL:
        raise BadInputError("this operator has no kernel here")
    for attribute, right in _IGNORED.get(name, {}).items():
        if (value := node.attributes.get(attribute, right)) != right:
            raise BadInputError(f"its attribute {attribute} = {value} is not imported")
    if name in _SHAPING and len(node.known) > 1 and node.operands[1] is not None and node.known[1] is None:
        raise BadInputError("its shape depends on the step's inputs; kernels are compiled for fixed shapes")
    types = [shape_and_dtype(item.ty)[1] for item in node.operands if item is not None]
    if name in _OF_FLOATS and types[0] != "float32":
        raise BadInputError(f"this operator has no kernel for {types[0]}")
    if name == "Mod" and "float32" in types and not node.attributes.get("fmod"):
        raise BadInputError("of float32, it has no kernel without fmod")
    if name == "PRelu" and node.opset < _BROADCASTING and node.shape(1) not in ([1], []):
        raise BadInputError(f"before version {_BROADCASTING}, it has no kernel for slopes of channels")
    if name == "Resize" and len(node.known) > 2 and (scales := node.known[2]) is not None and scales.size:  # noqa: PLR2004
        # TVM's importer takes the ratio of extents, whatever the scales are.
        extents = np.asarray(node.shape()) * scales.astype(np.float64)
        if np.abs(extents - np.round(extents)).max() > _WHOLE:
            raise BadInputError(f"its scales {scales.tolist()} are no ratios of extents")


_WHOLE = 1e-4
"""An extent that is no further from a whole number is one, but for the rounding of its scale."""

FIXED = {
    "BatchNormalization": (3, 4), "Clip": (1, 2), "Dropout": (1, 2), "OneHot": (2,), "Pad": (2,), "Resize": (1, 2),
    "ScatterElements": (2,), "ScatterND": (2,),
}  # fmt: skip
"""Operands that are never trained: an initializer there keeps its value."""
