"""The inputs of a step of an ONNX file: shapes without free dimensions, and values where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, helper

from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Initial
from autotm.zoo.network import Array, Fill

Shape = tuple[int, ...]
InputValues = Mapping[str, Any] | Sequence[Any] | Array

NUMBERS = ("float32", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""What kernels compute with."""
_PASSED_ON = {"Cast", "Clip", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class Fed:
    """One input of the file.

    Attributes:
        shape: without free dimensions.
        dtype: as NumPy calls it.
        fill: its value, or how it is drawn.
    """

    shape: Shape
    dtype: str
    fill: Fill


def inputs_of(path: Path, graph: GraphProto, given: InputValues | None, sizes: Mapping[str, int]) -> dict[str, Fed]:
    """Return the inputs of a graph by name, in its order; initializers are none.

    Args:
        path: of the file, for messages.
        graph: of the file.
        given: a shape or an array for each input by name; or arrays in the order of the inputs; or the only one.
        sizes: free dimensions by name. One that has a size in one input has it in all.

    Raises:
        BadInputError: no such input or dimension; a shape or type that the file does not take; a dimension left free.
    """
    held = {tensor.name for tensor in graph.initializer}
    wanted = {item.name: item for item in graph.input if item.name not in held}
    values = _by_name(path, list(wanted), given)
    named = {dim.dim_param for item in wanted.values() for dim in item.type.tensor_type.shape.dim if dim.dim_param}
    for name in sizes:
        if name not in named:
            raise unknown_name(f"free dimension of {path}", name, named)
    found, bound = {}, dict(sizes)
    for name, item in wanted.items():
        _check_kind(path, item)
        if name in values:
            found[name] = _bind(path, item, values[name], bound)
    shapes = {name: found.get(name) or _shape(item, bound) for name, item in wanted.items()}
    if free := {name: _free(wanted[name], bound) for name, shape in shapes.items() if shape is None}:
        text = "; ".join(f"'{name}': {', '.join(dimensions)}" for name, dimensions in free.items())
        example = ", ".join(f"'{name}': ({', '.join('..' for _ in _dims(wanted[name]))},)" for name in free)
        raise BadInputError(
            f"{path}: inputs have free dimensions ({text}), and kernels are compiled for fixed shapes; give them, e.g. "
            f"inputs={{{example}}}"
        )
    return {name: _fed(graph, wanted[name], shape or (), values.get(name)) for name, shape in shapes.items()}


def _by_name(path: Path, names: list[str], given: InputValues | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise unknown_name(f"input of {path}", name, names)
        return dict(given)
    items = list(given) if isinstance(given, tuple | list) else [given]
    if any(isinstance(item, int) for item in items):
        raise BadInputError(f"{path}: inputs: {given!r}: give shapes by name: inputs={{'{names[0]}': {tuple(items)}}}")
    if len(items) > len(names):
        raise BadInputError(f"{path}: {len(items)} inputs given, it has {len(names)}: {', '.join(names)}")
    return dict(zip(names, items, strict=False))


def _check_kind(path: Path, item: ValueInfoProto) -> None:
    if not item.type.HasField("tensor_type"):
        raise BadInputError(f"{path}: input '{item.name}' is no tensor; only tensors have kernels")
    if (dtype := _dtype(item)) not in NUMBERS:
        raise BadInputError(
            f"{path}: input '{item.name}' is {dtype}; kernels compute in float32 and integers: export it so"
        )


def _dtype(item: ValueInfoProto) -> str:
    kind = item.type.tensor_type.elem_type
    if kind in {TensorProto.UNDEFINED, TensorProto.STRING}:
        return "undefined" if kind == TensorProto.UNDEFINED else "text"
    return str(helper.tensor_dtype_to_np_dtype(kind))


def _dims(item: ValueInfoProto) -> list[int | str]:
    """Extents; of free dimensions the name, empty where there is none."""
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in item.type.tensor_type.shape.dim]


def _bind(path: Path, item: ValueInfoProto, value: Any, bound: dict[str, int]) -> Shape:
    """Return the shape given for an input, and bind the input's free dimensions by it."""
    is_shape = isinstance(value, tuple | list) and all(isinstance(extent, int) for extent in value)
    shape = tuple(value) if is_shape else np.shape(value)
    dims, what = _dims(item), f"{path}: input '{item.name}'"
    described = ", ".join(str(dim or "?") for dim in dims)
    has_shape = item.type.tensor_type.HasField("shape")
    if has_shape and len(dims) != len(shape):
        raise BadInputError(f"{what}: {list(shape)} given, the file has [{described}]")
    for dim, extent in zip(dims, shape, strict=has_shape):
        fixed = bound.setdefault(dim, extent) if isinstance(dim, str) and dim else dim
        if isinstance(fixed, int) and fixed != extent:
            why = f"with {dim} = {fixed} " if isinstance(dim, str) else ""
            raise BadInputError(f"{what}: {list(shape)} given, the file has [{described}] {why}".rstrip())
        if extent < (1 if is_shape else 0):
            raise BadInputError(f"{what}: {list(shape)} given; every extent is at least 1")
    if not is_shape and not np.can_cast(np.asarray(value).dtype, _dtype(item), "same_kind"):
        raise BadInputError(f"{what}: {np.asarray(value).dtype} given, the file has {_dtype(item)}")
    return shape


def _shape(item: ValueInfoProto, bound: Mapping[str, int]) -> Shape | None:
    """Return the shape of an input for which none is given; None while a dimension is free."""
    if not item.type.tensor_type.HasField("shape"):
        return None
    found = [bound.get(dim) if isinstance(dim, str) else dim for dim in _dims(item)]
    return None if any(extent is None for extent in found) else tuple(extent or 0 for extent in found)


def _free(item: ValueInfoProto, bound: Mapping[str, int]) -> list[str]:
    free = [(axis, dim) for axis, dim in enumerate(_dims(item)) if isinstance(dim, str) and dim not in bound]
    return [f"{dim or '?'} (axis {axis})" for axis, dim in free] or ["of unknown number"]


def _fed(graph: GraphProto, item: ValueInfoProto, shape: Shape, value: Any) -> Fed:
    dtype = _dtype(item)
    if value is not None and not (isinstance(value, tuple | list) and tuple(value) == shape):
        return Fed(shape, dtype, np.array(value, dtype, order="C"))
    if dtype == "float32":
        return Fed(shape, dtype, Initial("normal"))
    return Fed(shape, dtype, Initial("integers", _rows(graph, item.name)))


def _rows(graph: GraphProto, name: str) -> int:
    """Return the rows of the smallest table that an input looks up; 2, zeros and ones, where it looks up none."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    names, found = {name}, []
    for node in graph.node:
        if node.op_type in _PASSED_ON and node.input[0] in names:
            names.update(node.output)
        elif node.op_type == "Identity" and node.input[0] in tables:
            tables[node.output[0]] = tables[node.input[0]]
        elif node.op_type == "Gather" and node.input[1] in names and tables.get(node.input[0]):
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            found.append(tables[node.input[0]][axis])
    return min(found, default=2)
