"""Single nodes of an ONNX file: what each gives, and those that ONNX's reference computes, as kernels."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from tvm import relax

from autotm.kernels.library import ONNX_CALL
from autotm.kernels.onnx_operators import OnnxOperation, reference_evaluator
from autotm.kernels.schedules.dispatch import framework_kernel
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass
from autotm.zoo.network import Array, shape_and_dtype
from autotm.zoo.onnx.model_file import NUMBERS, inner_graphs

# A node of an ONNX file as a model of its own: what it gives, and what it computes from constants.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


@dataclass(frozen=True)
class Kind:
    """Shape of a tensor, and its type by NumPy's name."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, value: Array) -> Kind:
        """Return the shape and type of an array."""
        return cls(value.shape, str(value.dtype))


def is_random(node: NodeProto, known: Mapping[str, Array]) -> bool:
    """Return whether a node, or one within it, draws random numbers.

    A dropout draws unless its `training_mode` is known to be false.
    """
    if node.op_type == "Dropout":
        mode = node.input[2] if len(node.input) > 2 else ""  # noqa: PLR2004 - the position of training_mode
        return bool(mode) and (mode not in known or bool(known[mode]))
    return node.op_type in RANDOM or any(is_random(item, known) for graph in inner_graphs(node) for item in graph.node)


def names_read(node: NodeProto) -> list[str]:
    """Return the names of the tensors that a node and its inner graphs read from outside, each once."""
    names = [name for name in node.input if name]
    for graph in inner_graphs(node):
        own = {item.name for item in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        read = [name for inner in graph.node for name in names_read(inner)]
        names += [name for name in (*read, *(item.name for item in graph.output)) if name not in own]
    return list(dict.fromkeys(names))


def node_model(
    node: NodeProto, operands: Mapping[str, Kind], known: Mapping[str, Array], results: Collection[str], opset: int
) -> ModelProto:
    """Return a model of one node: it is fed `operands`, holds `known` as initializers, and gives `results`."""
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype)), kind.shape)
            for name, kind in operands.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(value, name) for name, value in known.items()],
    )
    domains = {"": opset, node.domain: 1 if node.domain else opset}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in domains.items()])


def inferred_kinds(model: ModelProto) -> dict[str, Kind]:
    """Return the shapes and types of a model's results that ONNX's shape inference can tell."""
    try:
        outputs = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph.output
    except shape_inference.InferenceError:
        return {}
    kinds = {}
    for item in outputs:
        kind = item.type.tensor_type
        if kind.elem_type and kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            dtype = str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
            kinds[item.name] = Kind(tuple(dim.dim_value for dim in kind.shape.dim), dtype)
    return kinds


def computed(node: NodeProto, values: Mapping[str, Array], results: Sequence[str], opset: int) -> list[Array]:
    """Compute results of a node by ONNX's own reference; raises as `evaluated`."""
    model = node_model(node, {name: Kind.of(value) for name, value in values.items()}, {}, results, opset)
    return evaluated(model, reference_evaluator(model), values)


def evaluated(model: ModelProto, evaluator: ReferenceEvaluator, values: Mapping[str, Array]) -> list[Array]:
    """Compute the results of a model.

    Raises:
        Exception: whatever the reference raises where it does not have an operator, or the operands are wrong.
        BadInputError: a result is of another rank than the standard says, as of a loop over numbers in ONNX 1.23.
    """
    arrays = [np.asarray(value) for value in evaluator.run(None, dict(values))]
    for item, array in zip(shape_inference.infer_shapes(model).graph.output, arrays, strict=True):
        kind = item.type.tensor_type
        if kind.HasField("shape") and len(kind.shape.dim) != array.ndim:
            raise BadInputError(
                f"ONNX's reference gives '{item.name}' {array.ndim} axes, and the standard {len(kind.shape.dim)}"
            )
    return arrays


STORED = (*NUMBERS, "float16", "float64")
"""Types of tensors that a step can hold; only ONNX's kernels compute with the last two."""
_CLASSES = (
    ("Conv", OpClass.CONV_FORWARD), ("MatMul", OpClass.MATMUL), ("Attention", OpClass.MATMUL),
    ("LSTM", OpClass.MATMUL), ("GRU", OpClass.MATMUL), ("RNN", OpClass.MATMUL), ("DFT", OpClass.MATMUL),
    ("Normalization", OpClass.NORMALIZATION), ("Softmax", OpClass.NORMALIZATION), ("Pool", OpClass.WINDOW),
    ("Reduce", OpClass.REDUCTION), ("Gather", OpClass.DATA_MOVEMENT), ("Scatter", OpClass.DATA_MOVEMENT),
)  # fmt: skip
"""Class of an operator's memory accesses, by a part of its name; the first that fits. All others are elementwise."""


def reference_kernel(
    builder: relax.BlockBuilder,
    node: NodeProto,
    operands: Mapping[str, relax.Expr],
    known: Mapping[str, Array],
    results: Mapping[str, Kind | None],
    opset: int,
) -> dict[str, relax.Expr]:
    """Emit a kernel that computes a node by ONNX's reference; return its results by name.

    Args:
        builder: of the step.
        node: of the file.
        operands: its tensors that the step computes or is fed; the values of the others are `known`.
        known: values of its other tensors.
        results: names of the results that are wanted, with their kinds where these are known beforehand.
        opset: version of ONNX's own operators.

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
    """Return the shape and type of a value in the step."""
    return Kind(*shape_and_dtype(value.ty))


def _try(model: ModelProto, operands: Mapping[str, Kind], results: Sequence[str]) -> tuple[dict[str, Kind], int]:
    """Compute a node on two sets of numbers; return kinds that both give its results, and the most bytes allocated."""
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
    """Return nonzero real numbers first, then zeros; of integers, which may be indices, zeros first, then ones."""
    if np.dtype(kind.dtype).kind != "f":
        return np.full(kind.shape, 0 if is_first else 1, kind.dtype)
    if not is_first:
        return np.zeros(kind.shape, kind.dtype)
    return np.linspace(0.1, 0.9, math.prod(kind.shape)).reshape(kind.shape).astype(kind.dtype)
