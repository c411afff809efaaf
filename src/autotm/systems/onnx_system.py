"""A program in ONNX Runtime: its loops are `Loop`, its branches are `If`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax, runtime

from autotm.control.program import Array, Block, Branch, Loop, Operator, Program, Statement, Value
from autotm.model.errors import BadInputError
from autotm.systems.source import Prepared, Ready, numbers, slice_bounds

_OPSET = 21
_IR_VERSION = 10
"""That of the opset; ONNX Runtime refuses models of a later one than it knows."""
MOST_STEPS = np.iinfo(np.int64).max
"""Of a `Loop` that its condition ends."""


def onnx_model(program: Program) -> onnx.ModelProto:
    """Return a model of the parameters; constants are its initializers.

    Raises:
        BadInputError: it recurses, for which ONNX has nothing, or an operator is not known.
    """
    writer = _Writer()
    graph = writer.graph("main", program.parameters, program.body)
    graph.initializer.extend(
        numpy_helper.from_array(np.array(array), writer.name(value)) for value, array in program.constants.items()
    )
    graph.initializer.extend(writer.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    return model


def interpreted(program: Program, threads: int) -> Ready:
    """Load a program as a model of ONNX.

    Raises:
        BadInputError: as of `onnx_model`.
    """
    model = onnx_model(program).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def on(arguments: Sequence[Array]) -> Prepared:
        fed = dict(zip(names, arguments, strict=True))
        return Prepared(lambda: session.run(None, fed))

    return on


class _Writer:
    """Writes nodes into the graph that is open; inner graphs read what outer ones name."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str] | None = None, **attributes: Any) -> str:
        outputs = outputs or [self.fresh()]
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attributes))
        return outputs[0]

    def constant(self, array: Any, dtype: str) -> str:
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def graph(
        self, name: str, parameters: Iterable[Value], block: Block, first: Sequence[onnx.ValueInfoProto] = ()
    ) -> onnx.GraphProto:
        """Return a block as a graph; each result gets a name that nothing else has."""
        outer, self.nodes = self.nodes, []
        self.block(block.statements)
        outputs = [_info(self.node("Identity", [self.name(value)]), value) for value in block.results]
        inputs = [*first, *(_info(self.name(value), value) for value in parameters)]
        graph = helper.make_graph(self.nodes, name, inputs, outputs)
        self.nodes = outer
        return graph

    def block(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            match statement:
                case Operator():
                    self.operator(statement)
                case Branch():
                    sides = {
                        f"{name}_branch": self.graph(self.fresh(), (), side)
                        for name, side in (("then", statement.then), ("else", statement.otherwise))
                    }
                    outputs = list(map(self.name, statement.results))
                    self.node("If", [self.name(statement.condition)], outputs, **sides)
                case Loop():
                    self.loop(statement)
                case _:
                    raise BadInputError("a graph of ONNX cannot call itself")

    def loop(self, loop: Loop) -> None:
        initial = [self.name(value) for value in loop.initial]
        number, goes_on = self.fresh(), self.fresh()
        first = [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
        ]
        if loop.condition is None:
            test, steps = self.constant(True, "bool"), self.constant(loop.steps, "int64")
            outer, self.nodes = self.nodes, []
            self.block(loop.body.statements)
            after = _condition(self.node("Identity", [goes_on]))
            results = [self.name(value) for value in loop.body.results]
        else:
            # The head is computed before the loop, and at the end of each step on the next states.
            self.rename(loop.states, initial)
            self.block(loop.head)
            test, steps = self.name(loop.condition), self.constant(MOST_STEPS, "int64")
            outer, self.nodes = self.nodes, []
            self.forget((*loop.states, *_results(loop.head)))
            states = [self.name(value) for value in loop.states]
            self.block(loop.head)
            self.block(loop.body.statements)
            results = [self.name(value) for value in loop.body.results]
            self.rename(loop.states, results)
            self.forget(_results(loop.head))
            self.block(loop.head)
            after = _condition(self.node("Identity", [self.name(loop.condition)]))
            self.rename(loop.states, states)
        outputs = [after]
        outputs += [
            _info(self.node("Identity", [name]), value) for name, value in zip(results, loop.states, strict=True)
        ]
        inputs = [*first, *(_info(self.name(value), value) for value in loop.states)]
        body = helper.make_graph(self.nodes, self.fresh(), inputs, outputs)
        self.nodes = outer
        self.forget((*loop.states, *_results(loop.head)))
        self.node("Loop", [steps, test, *initial], [self.name(value) for value in loop.states], body=body)
        self.block(loop.head)  # What its last run computed can be read afterwards.

    def rename(self, values: Sequence[Value], names: Sequence[str]) -> None:
        self.names.update(zip(values, names, strict=True))

    def forget(self, values: Iterable[Value]) -> None:
        """Let values get names that were never used."""
        for value in values:
            self.names[value] = self.fresh()

    # Operators.

    def operator(self, operator: Operator) -> None:
        holes = dict(zip(operator.holes, operator.operands, strict=True))
        arguments = [self.argument(item, holes, operator) for item in operator.call.args]
        outputs = [self.name(value) for value in operator.results]
        attrs, name = operator.call.attrs, operator.name
        if name in _SAME:
            self.node(_SAME[name], arguments[: len(operator.call.args)], outputs)
            return
        write = getattr(self, f"_{name.removeprefix('relax.').removeprefix('nn.')}", None)
        if write is None:
            raise BadInputError(f"{name} is not known here; add it to the operators of ONNX")
        write(operator, arguments, outputs, attrs)

    def argument(self, argument: relax.Expr, holes: dict[relax.Var, Value], operator: Operator) -> Any:
        match argument:
            case relax.Var():
                return self.name(holes[argument])
            case relax.Tuple():
                return [self.argument(item, holes, operator) for item in argument.fields]
            case ir.Constant() if isinstance(argument.value, runtime.Tensor):
                array = argument.value.numpy()
                return self.constant(array, str(array.dtype))
        return argument

    def _take(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("Gather", arguments[:2], outputs, axis=int(attrs.axis))

    def _split(self, operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("Split", arguments[:1], outputs, axis=int(attrs.axis), num_outputs=len(operator.results))

    def _reshape(self, operator: Operator, arguments: Any, outputs: list[str], _attrs: Any) -> None:
        self.node("Reshape", [arguments[0], self.constant(operator.results[0].shape, "int64")], outputs)

    def _permute_dims(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("Transpose", arguments, outputs, perm=numbers(attrs.axes))

    def _reduce(self, kind: str, operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        axes = range(len(operator.operands[0].shape)) if attrs.axis is None else numbers(attrs.axis)
        inputs = [arguments[0], self.constant(list(axes), "int64")]
        self.node(f"Reduce{kind}", inputs, outputs, keepdims=int(bool(attrs.keepdims)))

    def _sum(self, *arguments: Any) -> None:
        self._reduce("Sum", *arguments)

    def _mean(self, *arguments: Any) -> None:
        self._reduce("Mean", *arguments)

    def _max(self, *arguments: Any) -> None:
        self._reduce("Max", *arguments)

    def _softmax(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("Softmax", arguments, outputs, axis=int(attrs.axis))

    def _concat(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("Concat", arguments[0], outputs, axis=int(attrs.axis))

    def _argmax(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("ArgMax", arguments, outputs, axis=int(attrs.axis), keepdims=0)

    def _astype(self, operator: Operator, arguments: Any, outputs: list[str], _attrs: Any) -> None:
        self.node("Cast", arguments, outputs, to=_element(operator.results[0]))

    def _not_equal(self, _operator: Operator, arguments: Any, outputs: list[str], _attrs: Any) -> None:
        self.node("Not", [self.node("Equal", arguments)], outputs)

    def _strided_slice(self, operator: Operator, arguments: Any, outputs: list[str], _attrs: Any) -> None:
        axes, begins, ends = zip(*slice_bounds(operator), strict=True)
        ranges = [self.constant(each, "int64") for each in (begins, ends, axes)]
        self.node("Slice", [arguments[0], *ranges], outputs)

    def _pad(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        widths = numbers(attrs.pad_width)
        self.node("Pad", [arguments[0], self.constant([*widths[::2], *widths[1::2]], "int64")], outputs)

    def _conv2d(self, _operator: Operator, arguments: Any, outputs: list[str], attrs: Any) -> None:
        self.node("Conv", arguments, outputs, strides=numbers(attrs.strides), pads=numbers(attrs.padding))

    def _pool(self, kind: str, arguments: Any, outputs: list[str], attrs: Any) -> None:
        sizes = {"kernel_shape": attrs.pool_size, "strides": attrs.strides, "pads": attrs.padding}
        self.node(kind, arguments, outputs, **{key: numbers(value) for key, value in sizes.items()})

    def _avg_pool2d(self, _operator: Operator, *arguments: Any) -> None:
        self._pool("AveragePool", *arguments)

    def _max_pool2d(self, _operator: Operator, *arguments: Any) -> None:
        self._pool("MaxPool", *arguments)


_SAME = {
    "relax.add": "Add",
    "relax.multiply": "Mul",
    "relax.equal": "Equal",
    "relax.less": "Less",
    "relax.greater": "Greater",
    "relax.logical_and": "And",
    "relax.matmul": "MatMul",
    "relax.sigmoid": "Sigmoid",
    "relax.tanh": "Tanh",
    "relax.nn.relu": "Relu",
    "relax.where": "Where",
}
"""Operators of Relax that ONNX has in the same form."""


def _element(value: Value) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _element(value), list(value.shape))


def _condition(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [])


def _results(statements: Iterable[Statement]) -> list[Value]:
    return [value for item in statements if isinstance(item, Operator) for value in item.results]
