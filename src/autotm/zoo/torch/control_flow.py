"""A captured step with `cond`, `while_loop` and `scan`, in Relax: PyTorch's subgraphs as functions."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import tvm
from torch import fx
from tvm import ir, relax

from autotm.capture import Captured
from autotm.model.errors import BadInputError
from autotm.model.graph import Role
from autotm.zoo.functions import FunctionWriter, Kind, function_variable, integer
from autotm.zoo.torch.importer import IndexChecks, Translation, index_uses
from autotm.zoo.torch.program import constant_values, where

_HIGHER = torch.ops.higher_order
_ASSERT = torch.ops.aten._assert_async.msg  # noqa: SLF001 - its name


@dataclass(frozen=True)
class ControlModule:
    """A forward pass, or a training step, in Relax.

    Attributes:
        module: `main(inputs) -> (outputs, gradients)`; parameters without a gradient are constants in it.
        inputs: names of the arguments in order, parameters with a gradient among them.
        places: the line of the user's code of each loop, by the name of its function.
    """

    module: tvm.IRModule
    inputs: Sequence[str]
    places: Mapping[str, str]


def control_module(captured: Captured) -> ControlModule:
    """Write a captured step in Relax, with its buffers, and its parameters without a gradient, as constants.

    Raises:
        BadInputError: an operator has no kernel here, or forward changes a buffer; with the line of the user's code.
    """
    for name, node in captured.updates.items():
        raise BadInputError(
            f"{where(node)}: forward changes the buffer {name}, which a compiled function does not keep; pass it as an "
            "input and return its new value"
        )
    values: dict[fx.Node, torch.Tensor] = {}
    variables: dict[fx.Node, relax.Var] = {}
    for node, (role, name) in captured.arguments.items():
        if role is Role.INPUT or name in captured.gradients:
            variables[node] = relax.Var(name, relax.TensorType(*_kind(node, node)))
        else:
            values[node] = captured.values[name].detach()
    written = _Written()
    written.add("main", captured.graph, variables, values, [*captured.outputs, *captured.gradients.values()])
    functions = {own: func.with_attr("global_symbol", own.name_hint) for own, func in written.functions.items()}
    names = [captured.arguments[node][1] for node in variables]
    return ControlModule(relax.transform.Normalize()(tvm.IRModule(functions)), names, written.places)


def written_alone(node: fx.Node) -> tuple[tvm.IRModule, list[fx.Node], list[int]]:
    """Write one operator on functions as a module of its own.

    Returns:
        `main(operands) -> results`, the operands, and the numbers of the results that others read.

    Raises:
        BadInputError: an operator within has no kernel here; with the line of the user's code.
    """
    owner = node.graph.owning_module
    graph, copies = fx.Graph(owner), {}
    operands = []
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            copies[argument] = graph.node_copy(argument)
        else:
            copies[argument] = graph.placeholder(argument.name)
            copies[argument].meta.update(argument.meta)
            operands.append(argument)
    copy = graph.node_copy(node, copies.__getitem__)
    read = sorted({int(user.args[1]) for user in node.users})
    wanted = []
    for number in read:
        part = graph.call_function(operator.getitem, (copy, number))
        part.meta["val"] = node.meta["val"][number]
        wanted.append(part)
    graph.output(tuple(wanted))
    written = _Written()
    variables = {copies[item]: relax.Var(item.name, relax.TensorType(*_kind(item, node))) for item in operands}
    written.add("main", graph, variables, {}, wanted)
    functions = {own: func.with_attr("global_symbol", own.name_hint) for own, func in written.functions.items()}
    return relax.transform.Normalize()(tvm.IRModule(functions)), operands, read


@dataclass
class _Written:
    """The functions of a module, and the lines of its loops."""

    functions: dict[ir.GlobalVar, relax.Function] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def name(self, kind: str) -> str:
        """Return a new name for a loop or branch."""
        self._numbers[kind] += 1
        return f"{kind}_{self._numbers[kind]}"

    def add(
        self,
        name: str,
        graph: fx.Graph,
        variables: Mapping[fx.Node, relax.Var],
        values: Mapping[fx.Node, torch.Tensor],
        wanted: Sequence[fx.Node],
    ) -> ir.GlobalVar:
        """Write a graph as a function of its variables that returns the wanted nodes; others have `values`."""
        body = _Body(self, graph, constant_values(graph, values))
        asserted = [node for node in graph.nodes if node.target == _ASSERT]
        with body.builder.function(name, list(variables.values())):
            returned = body.results(variables, [*wanted, *asserted])[: len(wanted)]
            body.builder.emit_func_output(relax.Tuple(returned))
        for node in graph.nodes:
            if node.name in body.places:
                raise BadInputError(f"{where(node)}: it draws random numbers, which a compiled function does not")
        function = body.builder.finalize()[name]
        own = function_variable(name, [var.ty for var in variables.values()], function.ret_ty)
        self.functions[own] = function
        return own


class _Body(Translation):
    """Operators of a graph one after the other, those on subgraphs as calls of functions."""

    def __init__(self, written: _Written, graph: fx.Graph, known: Mapping[fx.Node, Any]) -> None:
        super().__init__(graph, known, IndexChecks(graph, {}, known), "tvm")
        self._written, self._owner = written, graph.owning_module
        self._is_turned: set[fx.Node] = set()
        # A row that is out of range ends the program; until then none outside of the table is read.
        self.importer.convert_map["embedding.default"] = self._row_of_table

    def _converted(self, node: fx.Node) -> Any:
        higher = {_HIGHER.cond: self._branch, _HIGHER.while_loop: self._while, _HIGHER.scan: self._scan}
        if node.target in higher:  # Whose own operators are refused with their own lines.
            return higher[node.target](node)
        if _is_flip(node) and node.args[0] in self._is_turned:
            return self.importer.env[node.args[0]]
        if node.target == torch.ops.aten.argmax.default:
            return self._place_of_largest(node)
        if node.target == _ASSERT:
            return self._assert(self._value(node.args[0]), str(node.args[1]), node)
        return super()._converted(node)

    # Checks while it runs.

    def _assert(self, holds: relax.Expr, message: str, node: fx.Node) -> relax.Var:
        holds = _without_axes(self.builder, holds)
        return self.builder.emit(relax.op.assert_op(holds, format=f"{where(node)}: {message}"))

    def _check_indices(self, node: fx.Node) -> None:
        """Let the program end with an error where indices are out of range."""
        emit, op = self.builder.emit, relax.op
        for use in index_uses(node):
            if use.indices in self.importer.known:
                continue
            indices = self.importer.env[use.indices]
            bounds = [relax.const(bound, str(indices.ty.dtype.dtype)) for bound in (use.first, use.last)]
            inside = op.logical_and(emit(op.greater_equal(indices, bounds[0])), emit(op.less_equal(indices, bounds[1])))
            ones = emit(op.astype(emit(inside), "int32"))
            least = emit(op.min(ones)) if len(indices.ty.shape) else ones
            holds = emit(op.equal(least, relax.const(1, "int32")))
            self._assert(holds, f"an index is out of range: it takes {use.first} to {use.last}", node)

    def _row_of_table(self, node: fx.Node) -> relax.Var:
        table, indices = (self.importer.env[argument] for argument in node.args[:2])
        return self.builder.emit(relax.op.take(table, indices, axis=0, mode="clip"))

    def _place_of_largest(self, node: fx.Node) -> relax.Var:
        """Find the first largest element along an axis; as PyTorch does, the first NaN where there is one."""
        emit, op, (x, axis, keeps) = self.builder.emit, relax.op, (*node.args, None, False)[:3]
        x = self._value(x)
        if axis is None:
            x, axis = emit(op.reshape(x, (-1,))), 0
        place = emit(op.argmax(x, axis, keepdims=bool(keeps)))
        if not str(x.ty.dtype.dtype).startswith("float"):
            return place
        is_nan = emit(op.astype(emit(op.isnan(x)), "int32"))
        first = emit(op.argmax(is_nan, axis, keepdims=bool(keeps)))
        found = emit(op.greater(emit(op.max(is_nan, axis, keepdims=bool(keeps))), relax.const(0, "int32")))
        return emit(op.where(found, first, place))

    # Operators on subgraphs.

    def _function(
        self, name: str, subgraph: fx.Node, kinds: Sequence[Kind], fixed: Sequence[fx.Node]
    ) -> tuple[ir.GlobalVar, list[relax.Expr]]:
        """Write a subgraph as a function; return it, with the last arguments of all its calls.

        Args:
            name: of the function.
            subgraph: the node whose attribute it is.
            kinds: of the arguments that come first, which differ from call to call.
            fixed: the arguments behind them. Known ones become constants of the function.
        """
        graph: fx.Graph = getattr(self._owner, subgraph.target).graph
        places = graph.find_nodes(op="placeholder")
        given = dict(zip(places[len(kinds) :], fixed, strict=True))
        for place, number in list(given.items()):
            if isinstance(number, int | float):  # The graph holds the sizes of tensors so.
                for user in list(place.users):
                    user.args = fx.node.map_arg(
                        user.args, lambda node, place=place, n=number: n if node is place else node
                    )
                del given[place]
        values = {place: self.importer.known[node] for place, node in given.items() if node in self.importer.known}
        changing = dict(zip(places, kinds, strict=False))
        changing |= {place: _kind(node, subgraph) for place, node in given.items() if place not in values}
        variables = {place: relax.Var(place.name, relax.TensorType(*kind)) for place, kind in changing.items()}
        (output,) = graph.find_nodes(op="output")
        wanted = output.args[0] if isinstance(output.args[0], list | tuple) else [output.args[0]]
        own = self._written.add(name, graph, variables, values, wanted)
        return own, [self.importer.env[node] for place, node in given.items() if place not in values]

    def _value(self, node: fx.Node) -> relax.Expr:
        """Return a node's value as an argument, a constant where it is known."""
        known = self.importer.known
        return self.importer.constant(known[node]) if node in known else self.importer.env[node]

    def _parts(self, several: relax.Var) -> list[relax.Var]:
        return [self.builder.emit(relax.TupleGetItem(several, index)) for index in range(len(several.ty.fields))]

    def _branch(self, node: fx.Node) -> list[relax.Var]:
        """Write `cond(condition, then, otherwise, operands)`."""
        condition, *subgraphs, operands = node.args
        name, sides = self._written.name("branch"), []
        for number, subgraph in enumerate(subgraphs):
            own, arguments = self._function(f"{name}_side{number}", subgraph, [], operands)
            result = relax.Var("side", own.ty.ret)
            call = relax.VarBinding(result, relax.Call(own, arguments))
            sides.append(relax.SeqExpr([relax.BindingBlock([call])], result))
        holds = _without_axes(self.builder, self._value(condition))
        return self._parts(self.builder.emit(relax.If(holds, *sides)))

    def _while(self, node: fx.Node) -> list[relax.Var]:
        """Write `while_loop(condition, body, states, further operands)`."""
        *subgraphs, states, fixed = node.args
        kinds, name = [_kind(state, node) for state in states], self._written.name("while_loop")
        (test, tested), (body, more) = (
            self._function(f"{name}_{part}", subgraph, kinds, fixed)
            for part, subgraph in zip(("test", "body"), subgraphs, strict=True)
        )
        params = {f"state{index}": kind for index, kind in enumerate(kinds)}
        params |= {f"fixed{index}": _kind_of(value) for index, value in enumerate([*tested, *more])}
        loop = FunctionWriter(name, params, kinds)
        now, rest = (list(loop.params.values())[part] for part in (slice(len(kinds)), slice(len(kinds), None)))
        (holds,) = loop.results(test, [*now, *rest[: len(tested)]])

        def again() -> relax.Expr:
            return loop.call(loop, *loop.results(body, [*now, *rest[len(tested) :]]), *rest)

        result = loop.branch(_without_axes(loop, holds), again, lambda: relax.Tuple(now))
        return self._called(loop, result, [*map(self._value, states), *tested, *more], node)

    def _scan(self, node: fx.Node) -> list[relax.Var]:
        """Write `scan(step, states, rows, further operands)`: a loop that puts its results into the rows of tensors.

        Rows of a tensor that was flipped, and rows of a result that is, are read or written from the last one on.
        """
        subgraph, states, rows, fixed = node.args
        # What another loop has written from the last row on is turned already.
        turns = [_is_flip(row) and row.args[0] not in self._is_turned for row in rows]
        rows = [row.args[0] if _is_flip(row) else row for row in rows]
        collected = [part for part in node.users if part.args[1] >= len(states)]
        turned = [part for part in collected if part.users and all(map(_is_flip, part.users))]
        self._is_turned.update(turned)
        results_turned = {part.args[1] - len(states) for part in turned}
        name, steps = self._written.name("scan"), int(rows[0].meta["val"].shape[0])
        kinds = [_kind(state, node) for state in states]
        row_kinds = [(shape[1:], dtype) for shape, dtype in (_kind(row, node) for row in rows)]
        body, more = self._function(f"{name}_body", subgraph, [*kinds, *row_kinds], fixed)
        whole_kinds = [_kind(value, node) for value in node.meta["val"][len(kinds) :]]
        changing = {"step": ((), "int64")} | {
            f"state{index}": kind for index, kind in enumerate([*kinds, *whole_kinds])
        }
        given = [*(_kind(row, node) for row in rows), *map(_kind_of, more)]
        params = changing | {f"fixed{index}": kind for index, kind in enumerate(given)}
        loop = FunctionWriter(name, params, [*kinds, *whole_kinds])
        emit, op = loop.emit, relax.op
        step, *others = loop.params.values()
        now, whole = others[: len(kinds)], others[len(kinds) : len(changing) - 1]
        rest = others[len(changing) - 1 :]

        def again() -> relax.Expr:
            places = [step, emit(op.subtract(integer(steps - 1), step))]
            pairs = zip(rest[: len(rows)], turns, strict=True)
            row = [emit(op.take(one, places[turn], axis=0, mode="clip")) for one, turn in pairs]
            results = loop.results(body, [*now, *row, *rest[len(rows) :]])
            filled = []
            for index, (all_of_them, one) in enumerate(zip(whole, results[len(kinds) :], strict=True)):
                place = emit(op.reshape(places[index in results_turned], (1, 1)))
                filled.append(emit(op.scatter_nd(all_of_them, place, emit(op.expand_dims(one, 0)))))
            return loop.call(loop, emit(op.add(step, integer(1))), *results[: len(kinds)], *filled, *rest)

        result = loop.branch(emit(op.less(step, integer(steps))), again, lambda: relax.Tuple([*now, *whole]))
        empty = [self.builder.emit(op.zeros(shape, dtype)) for shape, dtype in whole_kinds]
        first = [integer(0), *map(self._value, states), *empty]
        return self._called(loop, result, [*first, *map(self._value, rows), *more], node)

    def _called(
        self, loop: FunctionWriter, result: relax.Expr, arguments: Sequence[relax.Expr], node: fx.Node
    ) -> list[relax.Var]:
        """Add a loop that was written for a node, and call it; return its last states."""
        self._written.functions[loop.own] = loop.function(result)
        self._written.places[loop.own.name_hint] = where(node)
        return self._parts(self.builder.emit(relax.Call(loop.own, list(arguments))))


def _is_flip(node: fx.Node) -> bool:
    """Return whether a node turns the first axis of a tensor round."""
    return node.target == torch.ops.aten.flip.default and list(node.args[1]) == [0]


def _without_axes(writer: FunctionWriter | relax.BlockBuilder, holds: relax.Expr) -> relax.Expr:
    """Return a condition of one element as a tensor without axes."""
    return writer.emit(relax.op.reshape(holds, ())) if len(holds.ty.shape) else holds


def _kind(node: Any, user: fx.Node) -> Kind:
    """Return the shape and type of the value of a node that another one uses.

    Raises:
        BadInputError: it is no tensor.
    """
    value = node.meta["val"] if isinstance(node, fx.Node) else node
    if not isinstance(value, torch.Tensor):
        raise BadInputError(f"{where(user)}: it is given {value!r}; give it a tensor: torch.tensor({value!r})")
    return tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch.")


def _kind_of(value: relax.Expr) -> Kind:
    return tuple(int(extent) for extent in value.ty.shape), str(value.ty.dtype.dtype)
