"""An ONNX file as its own tools compute it; a step here is compared with their results before it is timed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from autotm.kernels.onnx_operators import reference_evaluator
from autotm.zoo.imported import NOISE, Imported, difference
from autotm.zoo.network import Array, NotComputedError, ReferenceMode, output_names
from autotm.zoo.onnx.framework import computed, names_read
from autotm.zoo.onnx.model_file import ModelFile, inner_graphs, label, version_of

_LOG = logging.getLogger(__name__)
Arrays = Mapping[str, Array]
_ERRORS = 3
"""Level of onnxruntime's messages that leaves out its warnings about how a file is written."""
_TYPES = {"to", "dtype"}
"""Attributes that hold a type."""


@dataclass(frozen=True)
class OnnxReference:
    """A step as onnxruntime, where it is installed, and ONNX's own reference compute it.

    Attributes:
        names: inputs of the file and their names in the step.
        parameters: initializers that are arguments of the step.
        outputs: computes the step's outputs from the file's and the step's other inputs.
        in_detail: imports the step again with the results of all nodes as outputs, and returns their names too.
    """

    file: ModelFile
    names: Mapping[str, str]
    parameters: Sequence[str]
    outputs: Callable[[Sequence[Array], Arrays], Sequence[Array]]
    in_detail: Callable[[], tuple[Imported, list[str]]]
    eager: None = None

    @property
    def name(self) -> str:
        """The name and version of each tool that computes the step."""
        runtime, own = _runtime(), f"ONNX's reference {onnx.__version__}"
        return f"onnxruntime {runtime.__version__} and {own}" if runtime else own

    def step(self, values: Arrays, mode: ReferenceMode) -> dict[str, Array]:
        """Compute a step's outputs from its arguments by name, as they lie in the file.

        Only float32 is computed by onnxruntime.

        Raises:
            NotComputedError: none of the file's tools computes it.
        """
        model = self._model(precise=mode == "float64")
        named = {**self.names, **{name: name for name in self.parameters}}
        fed = {name: values[argument] for name, argument in named.items() if argument in values}
        if mode == "float64":
            fed = {name: _widened(value) for name, value in fed.items()}
        try:
            outputs = self._computed(model, fed, mode)
        except Exception as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise NotComputedError(f"{self.name} cannot compute it: {why}") from error
        several = self.outputs(outputs, values)
        return dict(zip(output_names(len(several)), several, strict=True))

    def _computed(self, model: ModelProto, fed: Arrays, mode: ReferenceMode) -> list[Array]:
        runtime = _runtime() if mode == "float32" else None
        if runtime is not None:
            options = runtime.SessionOptions()
            options.log_severity_level = _ERRORS
            try:
                session = runtime.InferenceSession(
                    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
                return [np.asarray(value) for value in session.run(None, dict(fed))]
            except Exception as error:  # noqa: BLE001 - it lacks some operators, and the newest versions of others
                _LOG.info("onnxruntime does not compute %s: %s", self.file.path, error)
        return [np.asarray(value) for value in reference_evaluator(model).run(None, dict(fed))]

    def _model(self, *, precise: bool) -> ModelProto:
        """Return the file's graph with the step's parameters as inputs."""
        graph = GraphProto()
        graph.CopyFrom(self.file.graph)
        del graph.initializer[:], graph.input[:], graph.value_info[:]
        for item in self.file.graph.input:
            if item.name in self.names:
                graph.input.append(item)
        for name, value in self.file.initializers.items():
            if name in self.parameters:
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
            else:
                graph.initializer.append(numpy_helper.from_array(value, name))
        if precise:
            _widen(graph)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.file.opset)])

    def first_difference(self, values: Arrays, actual: Mapping[str, Array]) -> str | None:
        """Name the first node whose result here differs from ONNX's reference on the same operands."""
        known = {**self.file.initializers, **{name: values[name] for name in self.parameters if name in values}}
        known |= {name: values[argument] for name, argument in self.names.items() if argument in values}
        noise = np.random.default_rng(0)

        def noisy(value: Array) -> Array:
            if value.dtype != np.float32:
                return value
            return np.asarray(value * (1 + NOISE * noise.standard_normal(value.shape)), np.float32)

        for node in self.file.graph.node:
            operands = {name: known[name] for name in names_read(node)}
            names = [name for name in node.output if name]
            opset = version_of(node, self.file.opset)
            wanted = computed(node, operands, names, opset)
            rounded = computed(node, {name: noisy(value) for name, value in operands.items()}, names, opset)
            for name, exact, other in zip(names, wanted, rounded, strict=True):
                if name in actual and (text := difference(actual[name], exact, [other], "ONNX")):
                    return f"{label(node)}: {text}"
                known[name] = actual.get(name, exact)
        return None


def _runtime() -> Any:
    """Return the module onnxruntime; None where it is not installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        return None


def _widened(value: Array) -> Array:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _widen(graph: GraphProto) -> None:
    """Put float64 in the place of float32 everywhere in a graph."""
    for item in (*graph.input, *graph.output, *graph.value_info):
        if item.type.tensor_type.elem_type == TensorProto.FLOAT:
            item.type.tensor_type.elem_type = TensorProto.DOUBLE
    held = [item.t for node in graph.node for item in node.attribute if item.type == AttributeProto.TENSOR]
    for tensor in (*graph.initializer, *held):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(_widened(numpy_helper.to_array(tensor)), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
        for inner in inner_graphs(node):
            _widen(inner)
        if node.op_type == "Constant" and node.attribute[0].name in {"value_float", "value_floats"}:
            value = np.asarray(helper.get_attribute_value(node.attribute[0]), np.float64)
            node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
