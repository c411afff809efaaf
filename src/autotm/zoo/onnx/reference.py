"""An ONNX file as its own tools compute it: what a step here is compared with before it is timed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from autotm.kernels.onnx_operators import reference_evaluator
from autotm.zoo.imported import Imported
from autotm.zoo.network import NotComputedError, ReferenceMode
from autotm.zoo.onnx.framework import Array, computed, names_read
from autotm.zoo.onnx.model_file import ModelFile, label, version_of

_LOG = logging.getLogger(__name__)
Arrays = Mapping[str, Array]
_ALLOWED, _ROUNDING = 10.0, 1e-4
"""How far one node may be off: times what roundings make of it in the reference, and of the largest value."""
_NOISE = 1e-6
"""Relative noise on a node's operands, some roundings of float32: shows what a sum in another order may give."""
_ERRORS = 3
"""Of onnxruntime's levels of messages, the one that leaves out its warnings about how a file is written."""
_TYPES = {"to", "dtype"}
"""Attributes that hold a type."""


@dataclass(frozen=True)
class OnnxReference:
    """What onnxruntime, where it is installed, and ONNX's own reference compute for a step.

    Attributes:
        file: of the network.
        names: inputs of the file and their names in the step.
        parameters: initializers that are arguments of the step.
        outputs: computes the step's outputs from the file's and the step's other inputs.
        detailed: imports the step again with all nodes' results that it has as outputs, and gives their names too.
    """

    file: ModelFile
    names: Mapping[str, str]
    parameters: Sequence[str]
    outputs: Callable[[Sequence[Array], Arrays], Sequence[Array]]
    detailed: Callable[[], tuple[Imported, list[str]]]
    eager: None = None

    @property
    def name(self) -> str:
        """What computes, with its version."""
        runtime, own = _runtime(), f"ONNX's reference {onnx.__version__}"
        return f"onnxruntime {runtime.__version__} and {own}" if runtime else own

    def step(self, values: Arrays, way: ReferenceMode) -> dict[str, Array]:
        """Compute a step's outputs.

        Args:
            values: of the step's arguments by name, as they lie in the file.
            way: float64, and another order, are always ONNX's own reference.

        Raises:
            NotComputedError: none of the file's tools computes it.
        """
        model = self._model(precise=way == "float64")
        named = {**self.names, **{name: name for name in self.parameters}}
        fed = {name: values[given] for name, given in named.items() if given in values}
        if way == "float64":
            fed = {name: _widened(value) for name, value in fed.items()}
        try:
            outputs = self._computed(model, fed, way)
        except Exception as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise NotComputedError(f"{self.name} cannot compute it: {why}") from error
        several = self.outputs(outputs, values)
        return {"output": several[0]} if len(several) == 1 else {f"output.{n}": out for n, out in enumerate(several)}

    def _computed(self, model: ModelProto, fed: Arrays, way: ReferenceMode) -> list[Array]:
        runtime = _runtime() if way == "float32" else None
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
        """The file's graph with the step's parameters as inputs."""
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

    def in_detail(self) -> tuple[Imported, list[str]]:
        """Import the step with the result of every node among its outputs; gives their names too."""
        return self.detailed()

    def first_difference(self, values: Arrays, found: Mapping[str, Array]) -> str | None:
        """Say which node is the first that computes something else than ONNX's reference on the same operands.

        Args:
            values: of the step's arguments.
            found: results of nodes here.
        """
        known = {**self.file.initializers, **{name: values[name] for name in self.parameters if name in values}}
        known |= {name: values[given] for name, given in self.names.items() if given in values}
        noise = np.random.default_rng(0)
        for node in self.file.graph.node:
            operands = {name: known[name] for name in names_read(node)}
            names = [name for name in node.output if name]
            opset = version_of(node, self.file.opset)
            wanted = computed(node, operands, names, opset)
            noisy = {name: _noisy(value, noise) for name, value in operands.items()}
            rounded = computed(node, noisy, names, opset)
            for name, exact, other in zip(names, wanted, rounded, strict=True):
                if name in found and (text := _difference(found[name], exact, other)):
                    return f"{label(node)}: {text}"
                known[name] = found.get(name, exact)
        return None


def _runtime() -> Any:
    """onnxruntime, where it is installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        return None


def _noisy(value: Array, noise: np.random.Generator) -> Array:
    if value.dtype != np.float32:
        return value
    return np.asarray(value * (1 + _NOISE * noise.standard_normal(value.shape)), np.float32)


def _difference(ours: Array, exact: Array, other: Array) -> str:
    """How a node's result differs beyond roundings, in words; nothing where it does not."""
    ours = ours.reshape(exact.shape)
    if exact.dtype.kind != "f":
        wrong = ours != exact
    else:
        with np.errstate(all="ignore"):
            size = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
            error = np.nan_to_num(np.abs(other - exact), nan=0.0, posinf=0.0).max(initial=0.0)
            close = np.abs(ours - exact) <= _ALLOWED * error + _ROUNDING * size
            wrong = ~(close | (ours == exact) | (np.isnan(ours) & np.isnan(exact)))
    if not wrong.any():
        return ""
    place = tuple(np.argwhere(wrong)[0])
    return f"{ours[place]:.6g} where ONNX has {exact[place]:.6g}, and {int(wrong.sum())} of {wrong.size} numbers so"


def _widened(value: Array) -> Array:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _widen(graph: GraphProto) -> None:
    """Put float64 in the place of float32 everywhere in a graph."""
    for item in (*graph.input, *graph.output, *graph.value_info):
        if item.type.tensor_type.elem_type == TensorProto.FLOAT:
            item.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        elif attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            _widen(graph)
    if node.op_type == "Constant" and node.attribute[0].name in {"value_float", "value_floats"}:
        value = np.asarray(helper.get_attribute_value(node.attribute[0]), np.float64)
        node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
