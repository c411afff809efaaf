"""An ONNX file, read and checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, external_data_helper, helper, inliner, numpy_helper

from autotm.model.errors import BadInputError
from autotm.zoo.network import Array

OWN_DOMAINS = ("", "ai.onnx")
CONTRIBUTED = {("com.microsoft", name) for name in ("Gelu", "FastGelu", "BiasGelu", "SkipLayerNormalization")}
"""Operators that are not ONNX's own, and are imported all the same: what ONNX Runtime makes of others."""
EXPANDED = (
    "Attention", "Celu", "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "Swish",
)  # fmt: skip
"""Operators that ONNX itself defines by others, and TVM's importer lacks."""
_RESIZING = 11
"""The version since which resizing says how coordinates are computed."""
_TOO_WIDE = {TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class ModelFile:
    """What an ONNX file holds.

    Attributes:
        path: of the file.
        graph: without functions: their nodes stand where they were called.
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
            _check_operator(path, node)
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
        external_data_helper.load_external_data_for_model(model, str(path.parent))
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        return cls(path, model.graph, _opset(path, model), values)


def label(node: NodeProto) -> str:
    """Return the name of a node in messages: its own, or that of its first result."""
    return f"node '{node.name or next((name for name in node.output if name), '?')}' ({node.op_type})"


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """Iterate over all nodes, those of inner graphs behind the node that they belong to."""
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


def _check_operator(path: Path, node: NodeProto) -> None:
    is_known = node.domain in OWN_DOMAINS and onnx.defs.has(node.op_type)
    if not is_known and (node.domain, node.op_type) not in CONTRIBUTED:
        whose = f"domain '{node.domain}'" if node.domain else "ONNX"
        raise BadInputError(
            f"{path}: {label(node)}: this operator of {whose} is not supported; write the network without it"
        )


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
