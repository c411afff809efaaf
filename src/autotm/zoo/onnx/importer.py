"""The graph of an ONNX file as a step in Relax, and checks before it runs that indices lie within what they index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import tvm
from onnx import AttributeProto, GraphProto, NodeProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from autotm.model.errors import AutotmError, BadInputError
from autotm.zoo.imported import LinedBuilder
from autotm.zoo.network import Array
from autotm.zoo.onnx.framework import (
    STORED,
    Kind,
    computed,
    inferred_kinds,
    is_random,
    kind_of,
    names_read,
    node_model,
    reference_kernel,
)
from autotm.zoo.onnx.model_file import NUMBERS, ModelFile, inner_graphs, label, nodes_of, version_of
from autotm.zoo.onnx.operators import FIXED, RULES, Node, check_converter

ShapeOf = Callable[[str], tuple[int, ...]]
"""Function that returns the shape of a tensor by its name."""
_ALONG_AN_AXIS = {"Gather", "GatherElements", "Scatter", "ScatterElements"}
_OF_PLACES = {"GatherND", "ScatterND"}
"""Operators whose indices have one number for each of some axes, last."""


@dataclass(frozen=True)
class _Use:
    """Indices by name, and the extents of the axes that they index: one, or one for each number of a place."""

    indices: str
    node: NodeProto
    extents: tuple[int, ...]


class IndexChecks:
    """Checks of the indices that a graph computes from its integer inputs alone."""

    def __init__(self, opset: int, inputs: Mapping[str, str]) -> None:
        """Begin without checks; `inputs` are the names in the step of integer inputs, by their names in the file."""
        self._opset, self._inputs = opset, inputs
        self._names = {name: frozenset({renamed}) for name, renamed in inputs.items()}
        self._nodes: dict[str, tuple[NodeProto, Mapping[str, Array]]] = {}
        self._uses: list[_Use] = []

    def follow(self, node: NodeProto, known: Mapping[str, Array]) -> None:
        """Remember a node, if it computes from these inputs and constants alone."""
        read = [name for name in names_read(node) if name not in known]
        if not is_random(node, known) and all(name in self._names for name in read):
            names = frozenset().union(*(self._names[name] for name in read))
            for result in node.output:
                self._names[result], self._nodes[result] = names, (node, known)

    def check_known(self, node: NodeProto, known: Mapping[str, Array], shape_of: ShapeOf) -> None:
        """Refuse a node with a constant index that is out of range."""
        for use in _uses(node, shape_of):
            if use.indices in known:
                _check(use, known[use.indices], f"'{use.indices}'")

    def check_sources(self, node: NodeProto, known: Mapping[str, Array], shape_of: ShapeOf) -> None:
        """Remember the inputs behind a node's indices, to be checked; refuse indices that other operators compute."""
        for use in _uses(node, shape_of):
            if use.indices in self._names:
                self._uses.append(use)
            elif use.indices not in known:
                raise BadInputError(
                    f"its indices, '{use.indices}', are computed in the step, where nothing checks them"
                )

    def __call__(self, values: Mapping[str, Array]) -> None:
        """Check the indices that come from inputs whose `values` are given, by their names in the step.

        Raises:
            BadInputError: one is out of range; names it, its input, the range, and the node.
        """
        evaluated = {name: np.asarray(values[renamed]) for name, renamed in self._inputs.items() if renamed in values}
        for use in self._uses:
            names = self._names[use.indices]
            if names <= values.keys():
                _check(use, self._value(use.indices, evaluated), f"input {' and '.join(sorted(names))}")

    def _value(self, name: str, evaluated: dict[str, Array]) -> Array:
        if name not in evaluated:
            node, known = self._nodes[name]
            values = {item: known[item] if item in known else self._value(item, evaluated) for item in names_read(node)}
            results = [item for item in node.output if item]
            evaluated.update(zip(results, computed(node, values, results, self._opset), strict=True))
        return evaluated[name]


def _uses(node: NodeProto, shape_of: ShapeOf) -> Iterator[_Use]:
    if node.op_type in _ALONG_AN_AXIS:
        axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
        yield _Use(node.input[1], node, (shape_of(node.input[0])[axis],))
    elif node.op_type in _OF_PLACES:
        first = next((item.i for item in node.attribute if item.name == "batch_dims"), 0)
        yield _Use(node.input[1], node, shape_of(node.input[0])[first : first + shape_of(node.input[1])[-1]])


def _check(use: _Use, indices: Array, source: str) -> None:
    extents = np.asarray(use.extents)
    outside = (indices < -extents) | (indices >= extents)
    if outside.any():
        place = tuple(np.argwhere(outside)[0])
        extent = use.extents[place[-1] if len(use.extents) > 1 else 0]
        raise BadInputError(
            f"{source}: index {indices[place]} is out of range: {label(use.node)} takes {-extent} to {extent - 1}"
        )


Kernels = Literal["auto", "tvm"]
_KERNEL = tvm.ir.Op.get("relax.call_tir")
_WRITTEN_OUT = 1024
"""Elements of a constant that is part of the text of a kernel of ONNX's; a larger one takes memory."""
_ELEMENTWISE = {"Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub", "Where"}


class GraphImporter:
    """Writes the nodes of a graph, one after the other; what depends on no argument of the step is computed here.

    Only weights that a node reads become `parameters`.
    """

    def __init__(
        self,
        file: ModelFile,
        inputs: Mapping[str, relax.Var],
        weights: Collection[str],
        empty: Mapping[str, Array],
        *,
        trains: bool = False,
        kernels: Kernels = "auto",
    ) -> None:
        """Start with the inputs, and with weights that become variables; other initializers and `empty` are constants.

        Where the step `trains`, a node between weights and loss must be of operators: kernels have no gradient.
        With `kernels` of `auto`, ONNX's reference computes the nodes that have no kernel here.
        """
        self.builder = LinedBuilder.empty()
        self.parameters: dict[str, relax.Var] = {}
        self.results: dict[str, relax.Expr] = {}
        whole = {name: item.name for name, item in inputs.items() if not kind_of(item).dtype.startswith("float")}
        self.checks = IndexChecks(file.opset, whole)
        self._file, self._inputs, self._weights, self._kernels = file, inputs, weights, kernels
        self._known = {name: value for name, value in file.initializers.items() if name not in weights}
        self._known |= empty
        self._same: dict[str, str] = {}
        self._trained = set(weights) if trains else set()
        self._read = {name for node in nodes_of(file.graph) for name in names_read(node)}
        inner = [graph for node in nodes_of(file.graph) for graph in inner_graphs(node)]
        self._read |= {item.name for graph in (file.graph, *inner) for item in graph.output}
        self._converters = onnx_frontend._get_convert_map()  # noqa: SLF001  (its class cannot name the node at fault)
        self._reader = onnx_frontend.ONNXGraphImporter({}, "float32")

    def write(self, graph: GraphProto) -> list[relax.Expr]:
        """Write all nodes, and return the graph's outputs.

        Raises:
            BadInputError: a node has no rule, or results of unknown shape or of a type that no kernel computes with.
        """
        self._write_nodes(graph)
        outputs = [self._value(item.name) for item in graph.output]
        for item, output in zip(graph.output, outputs, strict=True):
            kind = item.type.tensor_type
            if kind.HasField("shape") and len(kind.shape.dim) != output.ty.ndim:
                raise BadInputError(
                    f"{self._file.path}: output '{item.name}' has {output.ty.ndim} axes here, and "
                    f"{len(kind.shape.dim)} in the file; please report it with the file"
                )
        return outputs

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
        known, opset = self._known_of(node), version_of(node, self._file.opset)
        is_known = len(known) == len(names_read(node))
        if node.op_type == "If" and node.input[0] in known:
            branch = _attribute(node, "then_branch" if known[node.input[0]].item() else "else_branch")
            self._known.update({item.name: onnx_frontend.get_numpy(item) for item in branch.initializer})
            self._write_nodes(branch)
            for name, inner in zip(node.output, branch.output, strict=True):
                self._alias(name, inner.name)
        elif node.op_type == "Identity":
            self._alias(node.output[0], node.input[0])
        elif node.op_type in {"Shape", "Size"}:
            shape = self._kind(node.input[0]).shape
            start, end = _attribute(node, "start"), _attribute(node, "end")
            value = shape[start:end] if node.op_type == "Shape" else int(np.prod(shape))
            self._known[node.output[0]] = np.array(value, np.int64)
        elif is_known and not is_random(node, known):
            names = [name for name in node.output if name]
            self._known.update(zip(names, computed(node, known, names, opset), strict=True))
        else:
            self._convert(node, known, opset)

    def _known_of(self, node: NodeProto) -> dict[str, Array]:
        """Return the values of the constants that a node reads, by name."""
        return {name: value for name in names_read(node) if (value := self._constant(name)) is not None}

    def _alias(self, name: str, source: str) -> None:
        self._same[name] = self._same.get(source, source)
        value = self._constant(name)
        self.checks.follow(helper.make_node("Identity", [source], [name]), {} if value is None else {source: value})

    def _convert(self, node: NodeProto, known: Mapping[str, Array], opset: int) -> None:
        """Bind the results of a node that depend on the step's arguments: by a kernel of ours, or of ONNX's."""
        if is_random(node, known):
            if node.op_type == "Dropout":
                raise BadInputError("is in training mode, which is not imported; export the network with model.eval()")
            raise BadInputError("draws random numbers, which is not imported; write the network without it")
        self.checks.check_known(node, known, self._shape)
        small = {name: value for name, value in known.items() if value.size <= _WRITTEN_OUT}
        fed = {name: self._kind(name) for name in names_read(node) if name not in small}
        names = [name for name in node.output if name in self._read]
        kinds = inferred_kinds(node_model(node, fed, small, names, opset))
        if empty := {name: kind for name, kind in kinds.items() if 0 in kind.shape}:
            self._known.update({name: np.zeros(kind.shape, kind.dtype) for name, kind in empty.items()})
            names = [name for name in names if name not in empty]
        if not names:
            return
        try:
            results = self._by_own_kernels(node, names, kinds, opset)
        except Exception as error:
            if self._kernels == "tvm":
                raise
            if self._is_trained(node):
                raise BadInputError(
                    f"has no gradient here, and weights lie before it; infer with it, or train without it ({error})"
                ) from error
            operands = {name: self._value(name, known.get(name)) for name in fed}
            wanted = {name: kinds.get(name) for name in names}
            try:
                results = reference_kernel(self.builder, node, operands, small, wanted, opset)
            except BadInputError as other:
                why = (
                    str(error) if isinstance(error, AutotmError) else f"{type(error).__name__}: {error}".splitlines()[0]
                )
                raise BadInputError(f"{why}; nor can ONNX's reference compute it in a step: {other}") from error
        self.results.update(results)
        if self._is_trained(node):
            self._trained.update(results)
        self.checks.follow(node, known)

    def _is_trained(self, node: NodeProto) -> bool:
        return any(self._same.get(name, name) in self._trained for name in names_read(node))

    def _by_own_kernels(
        self, node: NodeProto, names: Collection[str], kinds: Mapping[str, Kind], opset: int
    ) -> dict[str, relax.Expr]:
        """Compute results of a node by kernels of ours; raise where there are none, or result types differ."""
        fixed = FIXED.get(node.op_type, ())
        known = [self._constant(name, is_fixed=index in fixed) for index, name in enumerate(node.input)]
        operands = [
            self._operand(node, name, value) if name else None for name, value in zip(node.input, known, strict=True)
        ]
        for operand in operands:
            if operand is not None and (dtype := kind_of(operand).dtype) not in NUMBERS:
                raise BadInputError(f"an operand is {dtype}; kernels compute in float32: export the network so")
        attributes = self._reader._parse_attr(node.attribute)  # noqa: SLF001
        converted = Node(self.builder, operands, known, attributes, opset)
        check_converter(node.op_type, converted)
        self.checks.check_sources(node, self._known_of(node), self._shape)
        if node.op_type in RULES:
            result = RULES[node.op_type](converted)
        elif node.op_type in self._converters:
            attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
            convert = self._converters[node.op_type].get_converter(opset)
            result = convert(self.builder, onnx_frontend.onnx_input(operands), attributes, [{}, {}])
        else:
            raise BadInputError("this operator cannot be imported; write the network with others")
        return self._bound(node, result, names, kinds)

    def _bound(
        self, node: NodeProto, result: relax.Expr, names: Collection[str], kinds: Mapping[str, Kind]
    ) -> dict[str, relax.Expr]:
        """Bind the parts of a result that are read to variables, by name."""
        result = result if isinstance(result, relax.Tuple) else self.builder.emit(result)
        if isinstance(result, relax.Tuple):
            parts: Sequence[relax.Expr] = list(result.fields)
        elif isinstance(result.ty, relax.TupleType):
            parts = [relax.TupleGetItem(result, index) for index in range(len(result.ty.fields))]
        else:
            parts = [result]
        results = {}
        for name, part in zip(node.output, parts, strict=False):
            if name in names:
                results[name] = variable = self.builder.emit(part)
                _check_result(name, variable)
                if name in kinds and kind_of(variable) != kinds[name]:
                    raise BadInputError(f"its kernel here gives '{name}' as {kind_of(variable)}, not {kinds[name]}")
                if self._is_trained(node):
                    value = self.builder.lookup_binding(variable)
                    while isinstance(value, relax.Var):
                        value = self.builder.lookup_binding(value)
                    if isinstance(value, relax.Call) and value.op == _KERNEL:
                        raise BadInputError("its kernel has no gradient")
        if len(results) < len(names):
            raise BadInputError("its kernel here does not give all its results")
        return results

    def _constant(self, name: str, *, is_fixed: bool = False) -> Array | None:
        source = self._same.get(name, name)
        if is_fixed and source in self._weights:
            return self._file.initializers[source]
        return self._known.get(source)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._kind(name).shape

    def _kind(self, name: str) -> Kind:
        """Return the shape and type of a tensor; asking for those of a weight makes it no parameter."""
        known = self._constant(name, is_fixed=True)
        return kind_of(self._value(name)) if known is None else Kind.of(known)

    def _operand(self, node: NodeProto, name: str, known: Array | None) -> relax.Expr | None:
        if known is None:
            return self._value(name)
        if node.op_type in {"Concat", "Resize"} and not known.size:
            return None
        if not known.size and known.dtype.kind == "f":
            raise BadInputError(f"its operand '{name}' has no elements")
        is_uniform = known.ndim and known.size > 1 and bool((known == known.flat[0]).all())
        if node.op_type in _ELEMENTWISE and is_uniform:
            # A constant whose elements are equal takes no memory so.
            number = relax.const(known.flat[0], str(known.dtype))
            return self.builder.emit(relax.op.full(list(known.shape), number, str(known.dtype)))
        return self._value(name, known)

    def _value(self, name: str, known: Array | None = None) -> relax.Expr:
        source = self._same.get(name, name)
        known = self._constant(name) if known is None else known
        if known is not None:
            if str(known.dtype) not in STORED:
                raise BadInputError(f"constant '{name}' is {known.dtype}; kernels compute in float32: export it so")
            return relax.const(known, str(known.dtype))
        if source in self._weights and source not in self.parameters:
            value = self._file.initializers[source]
            self.parameters[source] = relax.Var(source, relax.TensorType(value.shape, str(value.dtype)))
        for values in (self.parameters, self.results, self._inputs):
            if source in values:
                return values[source]
        raise BadInputError(f"result '{name}' of another node is not imported; write the network without it")


def _attribute(node: NodeProto, name: str) -> Any:
    attributes: list[AttributeProto] = [item for item in node.attribute if item.name == name]
    return helper.get_attribute_value(attributes[0]) if attributes else None


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
    if (dtype := kind_of(variable).dtype) not in NUMBERS:
        raise BadInputError(
            f"its result '{name}' is {dtype}; kernels compute in float32: export the network in float32"
        )
