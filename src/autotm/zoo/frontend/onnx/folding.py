"""What an ONNX graph computes from nothing but constants (shapes, positions, masks), computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def is_foldable(node: NodeProto) -> bool:
    """Whether its results depend on its operands alone."""
    return node.op_type not in _RANDOM and not any(item.HasField("g") or item.graphs for item in node.attribute)


def folded(node: NodeProto, operands: Sequence[Array | None], opset: int) -> list[Array]:
    """The results of a node, by ONNX's own reference.

    Raises:
        Exception: whatever the reference raises where it does not have the operator, or the operands are wrong.
    """
    values = {name: value for name, value in zip(node.input, operands, strict=True) if name and value is not None}
    outputs = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "constant",
        [
            helper.make_value_info(name, helper.make_tensor_type_proto(_kind(item), item.shape))
            for name, item in values.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = ReferenceEvaluator(model).run(None, values)
    return [np.asarray(value) for value in found]


def _kind(value: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))
