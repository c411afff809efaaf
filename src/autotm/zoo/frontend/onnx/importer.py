"""The graph of an ONNX file as a step in Relax."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from onnx import AttributeProto, GraphProto, NodeProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from autotm.model.files import AutotmError, BadInputError
from autotm.zoo.frontend.lined import LinedBuilder
from autotm.zoo.frontend.onnx.folding import folded, is_foldable
from autotm.zoo.frontend.onnx.inputs import NUMBERS
from autotm.zoo.frontend.onnx.model_file import ModelFile, label
from autotm.zoo.frontend.onnx.operators import FIXED, RULES, Node

Array = npt.NDArray[Any]
_KERNEL = tvm.ir.Op.get("relax.call_tir")
_ELEMENTWISE = {"Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub", "Where"}


class GraphImporter:
    """Writes the nodes of a graph, one after the other; what depends on no argument of the step is computed here.

    Attributes:
        builder: where they are written.
        parameters: variables of the weights that a node has asked for.
    """

    def __init__(
        self, file: ModelFile, inputs: Mapping[str, relax.Var], weights: Collection[str], *, trains: bool = False
    ) -> None:
        """Start with the inputs, and with weights that become variables; the other initializers are constants.

        Where the step `trains`, a node between weights and loss must be of operators: kernels have no gradient.
        """
        self.builder = LinedBuilder.empty()
        self.parameters: dict[str, relax.Var] = {}
        self._file, self._weights = file, weights
        self._variables: dict[str, relax.Expr] = dict(inputs)
        self._known = {name: value for name, value in file.initializers.items() if name not in weights}
        self._same: dict[str, str] = {}
        self._trained = set(weights) if trains else set()
        self._converters = onnx_frontend._get_convert_map()  # noqa: SLF001  (its class cannot name the node at fault)
        self._reader = onnx_frontend.ONNXGraphImporter({}, "float32")

    def write(self, graph: GraphProto) -> list[relax.Expr]:
        """Write all nodes; the graph's outputs.

        Raises:
            BadInputError: a node that cannot be imported: it has no rule, or results of unknown shape or of a type that
                no kernel computes with.
        """
        self._write_nodes(graph)
        return [self._value(item.name) for item in graph.output]

    def _write_nodes(self, graph: GraphProto) -> None:
        for node in graph.node:
            self.builder.place = partial(label, node)
            try:
                self._write_node(node)
            except AutotmError as error:
                if str(error).startswith(str(self._file.path)):
                    raise
                raise BadInputError(f"{self._file.path}: {label(node)}: {error}") from error
            except Exception as error:
                lines = str(error).strip().splitlines()
                raise BadInputError(
                    f"{self._file.path}: {label(node)}: cannot be imported here: {type(error).__name__}: "
                    f"{lines[-1] if lines else ''}; write the network without it"
                ) from error

    def _write_node(self, node: NodeProto) -> None:
        known = [self._constant(name) for name in node.input]
        is_known = all(value is not None for name, value in zip(node.input, known, strict=True) if name)
        if node.op_type == "If":
            self._write_branch(node, known[0])
        elif node.op_type == "Identity":
            self._alias(node.output[0], node.input[0])
        elif node.op_type in {"Shape", "Size"}:
            shape = self._shape(node.input[0])
            start, end = (_attribute(node, name, None) for name in ("start", "end"))
            self._known[node.output[0]] = np.array(
                shape[start:end] if node.op_type == "Shape" else int(np.prod(shape)), np.int64
            )
        elif is_known and is_foldable(node):
            names = [name for name in node.output if name]
            self._known.update(zip(names, folded(node, known, self._file.opset), strict=True))
        else:
            self._convert(node)

    def _write_branch(self, node: NodeProto, condition: Array | None) -> None:
        """The one branch that is taken."""
        if condition is None:
            raise BadInputError("its condition depends on the step's inputs; a step has one fixed order of kernels")
        branch = _attribute(node, "then_branch" if condition.item() else "else_branch", None)
        self._known.update({item.name: onnx_frontend.get_numpy(item) for item in branch.initializer})
        self._write_nodes(branch)
        for name, inner in zip(node.output, branch.output, strict=True):
            self._alias(name, inner.name)

    def _alias(self, name: str, source: str) -> None:
        self._same[name] = self._same.get(source, source)

    def _convert(self, node: NodeProto) -> None:
        fixed = FIXED.get(node.op_type, ())
        known = [self._constant(name, is_fixed=index in fixed) for index, name in enumerate(node.input)]
        operands = [
            self._operand(node, name, value) if name else None for name, value in zip(node.input, known, strict=True)
        ]
        attributes = self._reader._parse_attr(node.attribute)  # noqa: SLF001
        if node.op_type in RULES:
            found = RULES[node.op_type](Node(self.builder, operands, known, attributes))
        elif node.op_type in self._converters:
            attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
            convert = self._converters[node.op_type].get_converter(self._file.opset)
            found = convert(self.builder, onnx_frontend.onnx_input(operands), attributes, [{}, {}])
        else:
            raise BadInputError("this operator cannot be imported; write the network with others")
        self._bind(node, found)

    def _bind(self, node: NodeProto, found: relax.Expr) -> None:
        found = found if isinstance(found, relax.Tuple) else self.builder.emit(found)
        if isinstance(found, relax.Tuple):
            parts: Sequence[relax.Expr] = list(found.fields)
        elif isinstance(found.ty, relax.TupleType):
            parts = [relax.TupleGetItem(found, index) for index in range(len(found.ty.fields))]
        else:
            parts = [found]
        is_trained = any(self._same.get(name, name) in self._trained for name in node.input)
        for name, part in zip(node.output, parts, strict=False):
            if name:
                variable = self.builder.emit(part)
                _check_result(name, variable)
                self._variables[name] = variable
                if is_trained:
                    self._check_gradient(variable)
                    self._trained.add(name)

    def _check_gradient(self, variable: relax.Var) -> None:
        value = self.builder.lookup_binding(variable)
        while isinstance(value, relax.Var):
            value = self.builder.lookup_binding(value)
        if isinstance(value, relax.Call) and value.op == _KERNEL:
            raise BadInputError("has no gradient here, and weights lie before it; infer with it, or train without it")

    def _constant(self, name: str, *, is_fixed: bool = False) -> Array | None:
        source = self._same.get(name, name)
        if is_fixed and source in self._weights:
            return self._file.initializers[source]
        return self._known.get(source)

    def _shape(self, name: str) -> tuple[int, ...]:
        known = self._constant(name)
        return known.shape if known is not None else tuple(int(extent) for extent in self._value(name).ty.shape)

    def _operand(self, node: NodeProto, name: str, known: Array | None) -> relax.Expr | None:
        if known is None:
            return self._value(name)
        if node.op_type == "Resize" and not known.size:
            return None
        is_uniform = known.ndim and known.size > 1 and bool((known == known.flat[0]).all())
        if node.op_type in _ELEMENTWISE and is_uniform:
            # It takes no memory then.
            number = relax.const(known.flat[0], str(known.dtype))
            return self.builder.emit(relax.op.full(list(known.shape), number, str(known.dtype)))
        return self._value(name, known)

    def _value(self, name: str, known: Array | None = None) -> relax.Expr:
        source = self._same.get(name, name)
        known = self._constant(name) if known is None else known
        if known is not None:
            if str(known.dtype) not in NUMBERS:
                raise BadInputError(f"constant '{name}' is {known.dtype}; kernels compute in float32: export it so")
            return relax.const(known, str(known.dtype))
        if source in self._weights and source not in self.parameters:
            value = self._file.initializers[source]
            self.parameters[source] = relax.Var(source, relax.TensorType(value.shape, str(value.dtype)))
        found = self.parameters.get(source, self._variables.get(source))
        if found is None:
            raise BadInputError(f"result '{name}' of another node is not imported; write the network without it")
        return found


def _attribute(node: NodeProto, name: str, otherwise: Any) -> Any:
    found: list[AttributeProto] = [item for item in node.attribute if item.name == name]
    return helper.get_attribute_value(found[0]) if found else otherwise


def _check_result(name: str, variable: relax.Var) -> None:
    kind = variable.ty
    is_tensor = isinstance(kind, relax.TensorType) and kind.shape is not None
    try:
        extents = [int(extent) for extent in kind.shape] if is_tensor else None
    except (TypeError, ValueError):
        extents = None
    if extents is None:
        raise BadInputError(
            f"the shape of its result '{name}' depends on values; kernels are compiled for fixed shapes: write the "
            "network without it"
        )
    if (dtype := str(getattr(kind.dtype, "dtype", kind.dtype))) not in NUMBERS:
        raise BadInputError(
            f"its result '{name}' is {dtype}; kernels compute in float32: export the network in float32"
        )
