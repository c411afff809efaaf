"""Nodes of an ONNX file as kernels that ONNX's own reference computes: those for which there are none of ours."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto
from tvm import relax

from autotm.kernels.library import ONNX_CALL, OnnxOperation, reference_evaluator
from autotm.kernels.schedules import framework_kernel
from autotm.model.files import BadInputError
from autotm.model.step import OpClass
from autotm.zoo.frontend.onnx.inputs import NUMBERS
from autotm.zoo.frontend.onnx.node_models import Array, Kind, evaluated, node_model

STORED = (*NUMBERS, "float16", "float64")
"""Types of tensors that a step can hold; only ONNX's kernels compute with the last two."""
_CLASSES = (
    ("Conv", OpClass.CONV_FORWARD), ("MatMul", OpClass.MATMUL), ("Attention", OpClass.MATMUL),
    ("LSTM", OpClass.MATMUL), ("GRU", OpClass.MATMUL), ("RNN", OpClass.MATMUL), ("DFT", OpClass.MATMUL),
    ("Normalization", OpClass.NORMALIZATION), ("Softmax", OpClass.NORMALIZATION), ("Pool", OpClass.WINDOW),
    ("Reduce", OpClass.REDUCTION), ("Gather", OpClass.DATA_MOVEMENT), ("Scatter", OpClass.DATA_MOVEMENT),
)  # fmt: skip
"""What an operator does to memory, by a part of its name; the first that fits. All others pass over their operands."""


def reference_kernel(
    builder: relax.BlockBuilder,
    node: NodeProto,
    operands: Mapping[str, relax.Expr],
    known: Mapping[str, Array],
    results: Mapping[str, Kind | None],
    opset: int,
) -> dict[str, relax.Expr]:
    """Emit a kernel that computes a node by ONNX's reference.

    Args:
        builder: of the step.
        node: of the file.
        operands: its tensors that the step computes or is fed, by name.
        known: values of the others.
        results: names of the results that are wanted, with what is known of each before the reference has run.
        opset: version of ONNX's own operators.

    Returns:
        The results by name.

    Raises:
        BadInputError: the shape of a result depends on values, or its type is none of numbers.
    """
    kinds = {name: kind_of(value) for name, value in operands.items()}
    model = node_model(node, kinds, known, list(results), opset)
    tried, allocated_bytes = _try(model, kinds, list(results))
    wanted = {name: tried.get(name) or kind for name, kind in results.items()}
    described = [(name, list(kind.shape), kind.dtype) for name, kind in kinds.items()]
    kept = [(name, list(kind.shape), kind.dtype) for name, kind in wanted.items() if kind and kind.dtype in STORED]
    if len(kept) < len(wanted):
        raise BadInputError("the shape of its result depends on values; kernels are compiled for fixed shapes")
    operation = OnnxOperation(model.SerializeToString(), described, kept)
    op_class = next((kind for part, kind in _CLASSES if part in node.op_type), OpClass.ELEMENTWISE)
    emitted = framework_kernel(
        builder, list(operands.values()), [(tuple(shape), dtype) for _, shape, dtype in kept],
        f"onnx_{node.op_type.lower()}", operation.text(), op_class, 0, allocated_bytes, ONNX_CALL,
    )  # fmt: skip
    return dict(zip(results, emitted, strict=True))


def kind_of(value: relax.Expr) -> Kind:
    """Shape and type of a value in the step."""
    return Kind(tuple(int(extent) for extent in value.ty.shape), str(getattr(value.ty.dtype, "dtype", value.ty.dtype)))


def _try(model: ModelProto, operands: Mapping[str, Kind], results: Sequence[str]) -> tuple[dict[str, Kind], int]:
    """Compute a node on two sets of numbers.

    Returns:
        Shapes and types of its results, those that are the same for both; and the bytes that a call allocates at most.
    """
    evaluator, kinds, most = reference_evaluator(model), [], 0
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        for is_first in (True, False):
            values = {name: _example(kind, is_first=is_first) for name, kind in operands.items()}
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            arrays = evaluated(model, evaluator, values)
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
            kinds.append({name: Kind.of(value) for name, value in zip(results, arrays, strict=True)})
    except Exception:  # noqa: BLE001 - it may refuse these numbers, and take those of a step
        return {}, most
    finally:
        if not was_tracing:
            tracemalloc.stop()
    first, second = kinds
    return {name: kind for name, kind in first.items() if kind == second[name] and 0 not in kind.shape}, most


def _example(kind: Kind, *, is_first: bool) -> Array:
    """Numbers of which none is zero, or zeros; of whole numbers, which may be indices, the other way round."""
    if np.dtype(kind.dtype).kind != "f":
        return np.full(kind.shape, 0 if is_first else 1, kind.dtype)
    if not is_first:
        return np.zeros(kind.shape, kind.dtype)
    return np.linspace(0.1, 0.9, math.prod(kind.shape)).reshape(kind.shape).astype(kind.dtype)
