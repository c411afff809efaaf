"""An ONNX file, read and checked before anything is made of it, and the inputs of its step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner, numpy_helper

from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Initial
from autotm.zoo.network import Array, Fill

OWN_DOMAINS = ("", "ai.onnx")
CONTRIBUTED = {("com.microsoft", name) for name in ("Gelu", "FastGelu", "BiasGelu", "SkipLayerNormalization")}
"""Operators that are not ONNX's own but are imported too: ONNX Runtime fuses other operators into them."""
EXPANDED = (
    "Attention", "Celu", "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "Swish",
)  # fmt: skip
"""Operators that ONNX itself defines by others, and TVM's importer lacks."""
_RESIZING = 11
"""The version since which resizing says how coordinates are computed."""
_TOO_WIDE = {TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class ModelFile:
    """The contents of an ONNX file.

    Attributes:
        graph: the graph without functions: their nodes stand where they were called.
        opset: version of ONNX's own operators.
        initializers: values by name, also those kept in files beside it.
    """

    path: Path
    graph: GraphProto
    opset: int
    initializers: Mapping[str, Array]

    @classmethod
    def read(cls, path: Path) -> ModelFile:
        """Read a file, if all of it is there and can be imported.

        Raises:
            BadInputError: the file is missing, damaged or not ONNX; a file beside it is missing or short; it has
                operators that ONNX does not, or weights that are not float32.
        """
        model = _model(path)
        if model.functions:
            model = inliner.inline_local_functions(model)
        for node in nodes_of(model.graph):
            is_known = node.domain in OWN_DOMAINS and onnx.defs.has(node.op_type)
            if not is_known and (node.domain, node.op_type) not in CONTRIBUTED:
                whose = f"domain '{node.domain}'" if node.domain else "ONNX"
                raise BadInputError(
                    f"{path}: {label(node)}: this operator of {whose} is not supported; write the network without it"
                )
        for tensor in model.graph.initializer:
            _check_initializer(path, tensor)
        try:
            onnx.checker.check_model(str(path))
        except Exception as error:
            # Outputs without a shape are common, and shapes are computed anew.
            if "Field 'shape' of 'type' is required but missing" not in str(error):
                raise BadInputError(f"{path}: is not valid ONNX: {_first_line(error)}; export it again") from error
        # The inliner asks for the type of every operand, of those left out and of initializers as well.
        described = {item.name for item in (*model.graph.input, *model.graph.value_info)}
        kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer if tensor.name not in described}
        model.graph.value_info.extend(
            helper.make_tensor_value_info(name, kind, None) for name, kind in {"": TensorProto.FLOAT, **kinds}.items()
        )
        model = inliner.inline_selected_functions(
            model, [("", name) for name in EXPANDED], inline_schema_functions=True
        )
        _rewrite_resizing(model, _opset(path, model))
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        return cls(path, model.graph, _opset(path, model), values)


def label(node: NodeProto) -> str:
    """Return the name of a node in messages: its own, or that of its first result."""
    return f"node '{node.name or next((name for name in node.output if name), '?')}' ({node.op_type})"


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield all nodes, those of inner graphs behind the node that they belong to."""
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from nodes_of(inner)


def inner_graphs(node: NodeProto) -> list[GraphProto]:
    """Return the graphs among the attributes of a node."""
    return [graph for item in node.attribute for graph in (*item.graphs, *([item.g] if item.HasField("g") else []))]


def version_of(node: NodeProto, opset: int) -> int:
    """Return the version of ONNX's operators by which a node is read, once `ModelFile.read` has rewritten it."""
    return max(opset, _RESIZING) if node.op_type == "Resize" else opset


def _rewrite_resizing(model: ModelProto, opset: int) -> None:
    """Rewrite resizing of old files as newer ones have it: places count from corners, and are rounded down."""
    if opset >= _RESIZING:
        return
    for node in nodes_of(model.graph):
        if node.op_type not in {"Resize", "Upsample"}:
            continue
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if "scales" in attributes:
            name = f"{node.output[0]}#scales"
            model.graph.initializer.append(numpy_helper.from_array(np.array(attributes["scales"], np.float32), name))
            node.input.append(name)
        x, scales = node.input
        newer = helper.make_node(
            "Resize", [x, "", scales], list(node.output), node.name, mode=attributes.get("mode", b"nearest"),
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        node.CopyFrom(newer)


def _model(path: Path) -> ModelProto:
    if not path.is_file():
        raise BadInputError(f"{path}: no such file; give the path of an ONNX file")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise BadInputError(
            f"{path}: cannot be read as ONNX ({_first_line(error)}): it is cut off or something else; export it again"
        ) from error
    if not model.graph.node and not model.graph.output:
        raise BadInputError(f"{path}: holds no network: it is cut off, or not an ONNX file; export it again")
    if model.graph.sparse_initializer:
        raise BadInputError(f"{path}: has sparse weights, which have no kernels; export it with dense ones")
    return model


def _check_initializer(path: Path, tensor: TensorProto) -> None:
    if tensor.data_type in _TOO_WIDE and len(tensor.dims):
        raise BadInputError(
            f"{path}: weight '{tensor.name}' is {_TOO_WIDE[tensor.data_type]}; kernels compute in float32: export the "
            "network in float32, with model.float() in PyTorch"
        )
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    place = {entry.key: entry.value for entry in tensor.external_data}
    data = path.parent / place.get("location", "")
    if not data.is_file():
        raise BadInputError(
            f"{path}: the values of '{tensor.name}' are in {data}, which is missing; keep it beside the ONNX file, "
            "or export with external_data=False"
        )
    needed = int(place.get("offset", 0)) + int(place.get("length", 0))
    if data.stat().st_size < needed:
        raise BadInputError(
            f"{path}: the values of '{tensor.name}' end at byte {needed} of {data}, which has "
            f"{data.stat().st_size}: it is cut off; copy or export it again"
        )


def _opset(path: Path, model: ModelProto) -> int:
    versions = [item.version for item in model.opset_import if item.domain in OWN_DOMAINS]
    if not versions:
        raise BadInputError(f"{path}: says no version of ONNX's operators; export it again")
    return int(versions[0])


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# The inputs of a step: shapes without free dimensions, and values where there are any.

Shape = tuple[int, ...]
InputValues = Mapping[str, Any] | Sequence[Any] | Array

NUMBERS = ("float32", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Element types that kernels compute with."""
_PASSED_ON = {"Cast", "Clip", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class Fed:
    """One input of the file, without free dimensions: its type by NumPy's name, its value or how that is drawn."""

    shape: Shape
    dtype: str
    fill: Fill


def inputs_of(path: Path, graph: GraphProto, inputs: InputValues | None, sizes: Mapping[str, int]) -> dict[str, Fed]:
    """Return the inputs of a graph by name, in its order; initializers are none.

    Args:
        path: of the file, for messages.
        graph: of the file.
        inputs: a shape or an array for each input by name; or arrays in the order of the inputs; or the only one.
        sizes: free dimensions by name. One that has a size in one input has it in all.

    Raises:
        BadInputError: no such input or dimension; a shape or type that the file does not take; a dimension left free.
    """
    held = {tensor.name for tensor in graph.initializer}
    wanted = {item.name: item for item in graph.input if item.name not in held}
    values = _by_name(path, list(wanted), inputs)
    named = {dim.dim_param for item in wanted.values() for dim in item.type.tensor_type.shape.dim if dim.dim_param}
    for name in sizes:
        if name not in named:
            raise unknown_name(f"free dimension of {path}", name, named)
    value_shapes, bound = {}, dict(sizes)
    for name, item in wanted.items():
        if not item.type.HasField("tensor_type"):
            raise BadInputError(f"{path}: input '{name}' is no tensor; only tensors have kernels")
        if (dtype := _dtype(item)) not in NUMBERS:
            raise BadInputError(
                f"{path}: input '{name}' is {dtype}; kernels compute in float32 and integers: export it so"
            )
        if name in values:
            value_shapes[name] = _bind(path, item, values[name], bound)
    shapes = {name: value_shapes.get(name) or _shape(item, bound) for name, item in wanted.items()}
    if free := {name: _free(wanted[name], bound) for name, shape in shapes.items() if shape is None}:
        text = "; ".join(f"'{name}': {', '.join(dimensions)}" for name, dimensions in free.items())
        example = ", ".join(f"'{name}': ({', '.join('..' for _ in _dims(wanted[name]))},)" for name in free)
        raise BadInputError(
            f"{path}: inputs have free dimensions ({text}), and kernels are compiled for fixed shapes; give them, e.g. "
            f"inputs={{{example}}}"
        )
    return {name: _fed(graph, wanted[name], shape or (), values.get(name)) for name, shape in shapes.items()}


def _by_name(path: Path, names: list[str], inputs: InputValues | None) -> dict[str, Any]:
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        for name in inputs:
            if name not in names:
                raise unknown_name(f"input of {path}", name, names)
        return dict(inputs)
    items = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    if any(isinstance(item, int) for item in items):
        raise BadInputError(f"{path}: inputs: {inputs!r}: give shapes by name: inputs={{'{names[0]}': {tuple(items)}}}")
    if len(items) > len(names):
        raise BadInputError(f"{path}: {len(items)} inputs given, it has {len(names)}: {', '.join(names)}")
    return dict(zip(names, items, strict=False))


def _dtype(item: ValueInfoProto) -> str:
    kind = item.type.tensor_type.elem_type
    if kind in {TensorProto.UNDEFINED, TensorProto.STRING}:
        return "undefined" if kind == TensorProto.UNDEFINED else "text"
    return str(helper.tensor_dtype_to_np_dtype(kind))


def _dims(item: ValueInfoProto) -> list[int | str]:
    """Return the extents; of free dimensions the name, empty where there is none."""
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in item.type.tensor_type.shape.dim]


def _bind(path: Path, item: ValueInfoProto, value: Any, bound: dict[str, int]) -> Shape:
    """Return the shape given for an input, and bind the input's free dimensions by it."""
    is_shape = isinstance(value, tuple | list) and all(isinstance(extent, int) for extent in value)
    shape = tuple(value) if is_shape else np.shape(value)
    dims, prefix = _dims(item), f"{path}: input '{item.name}'"
    described = ", ".join(str(dim or "?") for dim in dims)
    has_shape = item.type.tensor_type.HasField("shape")
    if has_shape and len(dims) != len(shape):
        raise BadInputError(f"{prefix}: {list(shape)} given, the file has [{described}]")
    for dim, extent in zip(dims, shape, strict=has_shape):
        fixed = bound.setdefault(dim, extent) if isinstance(dim, str) and dim else dim
        if isinstance(fixed, int) and fixed != extent:
            why = f"with {dim} = {fixed} " if isinstance(dim, str) else ""
            raise BadInputError(f"{prefix}: {list(shape)} given, the file has [{described}] {why}".rstrip())
        if extent < (1 if is_shape else 0):
            raise BadInputError(f"{prefix}: {list(shape)} given; every extent is at least 1")
    if not is_shape and not np.can_cast(np.asarray(value).dtype, _dtype(item), "same_kind"):
        raise BadInputError(f"{prefix}: {np.asarray(value).dtype} given, the file has {_dtype(item)}")
    return shape


def _shape(item: ValueInfoProto, bound: Mapping[str, int]) -> Shape | None:
    """Return the shape of an input for which none is given; None while a dimension is free."""
    if not item.type.tensor_type.HasField("shape"):
        return None
    extents = [bound.get(dim) if isinstance(dim, str) else dim for dim in _dims(item)]
    return None if any(extent is None for extent in extents) else tuple(extent or 0 for extent in extents)


def _free(item: ValueInfoProto, bound: Mapping[str, int]) -> list[str]:
    free = [(axis, dim) for axis, dim in enumerate(_dims(item)) if isinstance(dim, str) and dim not in bound]
    return [f"{dim or '?'} (axis {axis})" for axis, dim in free] or ["of unknown number"]


def _fed(graph: GraphProto, item: ValueInfoProto, shape: Shape, value: Any) -> Fed:
    dtype = _dtype(item)
    if value is not None and not (isinstance(value, tuple | list) and tuple(value) == shape):
        return Fed(shape, dtype, np.array(value, dtype, order="C"))
    initial = Initial("normal") if dtype == "float32" else Initial("integers", _rows(graph, item.name))
    return Fed(shape, dtype, initial)


def _rows(graph: GraphProto, name: str) -> int:
    """Return the rows of the smallest table that an input looks up; 2, zeros and ones, where it looks up none."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    names, rows = {name}, []
    for node in graph.node:
        if node.op_type in _PASSED_ON and node.input[0] in names:
            names.update(node.output)
        elif node.op_type == "Identity" and node.input[0] in tables:
            tables[node.output[0]] = tables[node.input[0]]
        elif node.op_type == "Gather" and node.input[1] in names and tables.get(node.input[0]):
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            rows.append(tables[node.input[0]][axis])
    return min(rows, default=2)
