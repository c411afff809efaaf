"""A captured step in Relax, and checks of its inputs before it runs: indices in range, assertions that hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import fx
from tvm import relax

from autotm.capture import Captured
from autotm.model.errors import BadInputError
from autotm.model.graph import Role
from autotm.zoo.imported import Imported, LinedBuilder
from autotm.zoo.network import Array
from autotm.zoo.torch.backward import JointImporter
from autotm.zoo.torch.framework import (
    FrameworkKernels,
    argument,
    is_degenerate,
    is_foreign,
    is_view,
    lies_as,
    refuse_rare,
)
from autotm.zoo.torch.program import constant_values, is_pure, where
from autotm.zoo.torch.random_numbers import COUNTER, Draws

_ALONG_AN_AXIS = {"gather", "index_select", "scatter", "scatter_add", "scatter_reduce"}
"""Operators whose arguments are a tensor, an axis, and indices along it, from 0 on."""
_FROM_THE_END_TOO = {"index", "index_put"}
"""Operators whose arguments are a tensor and indices along its first axes, which may be negative."""

_MOVING = {
    "_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "permute", "reshape", "select", "slice",
    "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip
"""Operators that give elements of a tensor as they are."""


@dataclass(frozen=True)
class IndexUse:
    """Indices of a node, and the first and the last that its operator takes."""

    indices: fx.Node
    node: fx.Node
    first: int
    last: int


class IndexChecks:
    """Checks of the indices and assertions that a graph computes from its integer inputs alone."""

    def __init__(self, graph: fx.Graph, inputs: Mapping[str, str], known: Mapping[fx.Node, Any]) -> None:
        """Collect the checks; `inputs` are names by that of the placeholder, `known` values depend on no argument."""
        self._known, self._inputs = known, inputs
        self._names: dict[fx.Node, frozenset[str]] = dict.fromkeys(known, frozenset())
        for node in graph.nodes:
            value = node.meta.get("val")
            if node in known or not isinstance(value, torch.Tensor):
                continue
            if value.is_floating_point() or value.is_complex():
                continue
            if node.op == "placeholder" and node.name in inputs:
                self._names[node] = frozenset({inputs[node.name]})
            elif node.op == "call_function" and is_pure(node):
                arguments = [self._names.get(item) for item in node.all_input_nodes]
                if all(names is not None for names in arguments):
                    self._names[node] = frozenset().union(*arguments)
        self._asserted = [
            node
            for node in graph.nodes
            if node.target == torch.ops.aten._assert_async.msg and self._names.get(node.args[0])  # noqa: SLF001 - its name
        ]
        self._uses = [use for node in graph.nodes for use in index_uses(node) if self._names.get(use.indices)]

    def check_sources(self, node: fx.Node) -> None:
        """Refuse a kernel of ours whose indices other operators compute: these may be out of range."""
        for use in index_uses(node):
            if use.indices not in self._names and not _is_rank(use.indices, use.last + 1):
                raise BadInputError(
                    f"its indices, {use.indices.name}, are computed in the step, where nothing checks them"
                )

    def __call__(self, values: Mapping[str, Array]) -> None:
        """Check the indices and assertions that come from inputs whose `values` are given, as the source has them.

        Raises:
            BadInputError: one is out of range; names it, its input, the range, and the line of the user's code.
        """
        evaluated = {
            node: torch.from_numpy(np.ascontiguousarray(values[name]))
            for node in self._names
            if node.op == "placeholder" and (name := self._inputs.get(node.name)) in values
        }
        for node in self._asserted:
            if self._names[node.args[0]] <= values.keys() and not self._value(node.args[0], evaluated).all():
                raise BadInputError(f"{_of(self._names[node.args[0]])}: {where(node)}: {node.args[1]}")
        for use in self._uses:
            names = self._names[use.indices]
            if names <= values.keys():
                indices = self._value(use.indices, evaluated)
                outside = indices[(indices < use.first) | (indices > use.last)]
                if outside.numel():
                    raise BadInputError(
                        f"{_of(names)}: index {outside[0].item()} is out of range: {where(use.node)} takes "
                        f"{use.first} to {use.last}"
                    )

    def _value(self, node: fx.Node, evaluated: dict[fx.Node, Any]) -> Any:
        if node in self._known:
            return self._known[node]
        if node not in evaluated:
            arguments, named = fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda item: self._value(item, evaluated)
            )
            evaluated[node] = node.target(*arguments, **named)  # type: ignore[operator]
        return evaluated[node]


def _of(names: Iterable[str]) -> str:
    return f"input {' and '.join(sorted(names))}"


def index_uses(node: fx.Node) -> Iterator[IndexUse]:
    """Yield the indices among a node's arguments."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - no other name
        return
    name = node.target.overloadpacket.__name__
    if name == "embedding":
        table, indices = node.args[:2]
        yield IndexUse(indices, node, 0, _shape(table)[0] - 1)
    elif name in _ALONG_AN_AXIS:
        tensor, axis, indices = node.args[:3]
        yield IndexUse(indices, node, 0, (_shape(tensor)[axis] if _shape(tensor) else 1) - 1)
    elif name in _FROM_THE_END_TOO:
        tensor, several = node.args[:2]
        for axis, indices in enumerate(several):
            if isinstance(indices, fx.Node) and indices.meta["val"].dtype != torch.bool:
                yield IndexUse(indices, node, -_shape(tensor)[axis], _shape(tensor)[axis] - 1)


def _is_rank(node: fx.Node, extent: int) -> bool:
    """Return whether indices come from `topk` along an axis of at most `extent` elements: chosen experts, say."""
    while _name(node) in _MOVING and node.args:
        node = node.args[0]
    if _name(node) != "getitem" or _name(node.args[0]) != "topk":
        return False
    source = node.args[0]
    shape = _shape(source.args[0])
    return (shape[argument(source, 2, "dim", -1)] if shape else 1) <= extent


def _name(node: Any) -> str:
    target = getattr(node, "target", None)
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", ""))


def _shape(node: Any) -> Sequence[int]:
    return [int(extent) for extent in node.meta["val"].shape]


Kernels = Literal["auto", "tvm", "torch"]


def imported_step(
    captured: Captured, *, trains: bool, kernels: Kernels, translation_type: type[Translation]
) -> Imported:
    """Write a captured step in Relax, with its parameters, running averages and inputs.

    Args:
        captured: the step.
        trains: if not, everything that has a value but the inputs is a parameter.
        kernels: as in `from_torch`.
        translation_type: writes its operators.

    Raises:
        BadInputError: an operator that cannot be imported, with the line of the user's code that it comes from.
    """
    added = {name: _added(captured.graph, node) for name, node in captured.updates.items()}
    counters = {name: number for name, number in added.items() if number}
    updates = {name: node for name, node in captured.updates.items() if name not in counters}
    kinds: dict[Role, dict[str, torch.Tensor]] = {role: {} for role in (Role.INPUT, Role.PARAMETER, Role.STATE)}
    variables: dict[fx.Node, relax.Var] = {}
    fixed: dict[fx.Node, torch.Tensor] = {}
    for node, (role, name) in captured.arguments.items():
        if role is Role.CONSTANT:
            fixed[node] = torch.ones(())
            continue
        value = captured.values[name]
        used_as = _role(role, value, trains=trains, changes=name in updates)
        if used_as is Role.CONSTANT or not value.numel():
            fixed[node] = value.detach()
        elif node.users or used_as is Role.STATE:
            kinds[used_as][name] = value
            kind = relax.TensorType(tuple(value.shape), str(value.dtype).removeprefix("torch."))
            variables[node] = relax.Var(name, kind)
    order = [node for role in kinds for node in variables if captured.arguments[node][1] in kinds[role]]
    known = constant_values(captured.graph, fixed)
    names = {node.name: name for node, (role, name) in captured.arguments.items() if role is Role.INPUT}
    translation = translation_type(captured.graph, known, IndexChecks(captured.graph, names, known), kernels)
    builder, draws = translation.builder, translation.importer.draws
    gradients = {name: node for name, node in captured.gradients.items() if name in kinds[Role.PARAMETER]}
    arrays = {role: {name: _array(value) for name, value in values.items()} for role, values in kinds.items()}
    states = arrays[Role.STATE]
    with builder.function("main"):
        with builder.dataflow():
            wanted = [*captured.outputs, *(updates[name] for name in states), *gradients.values()]
            returned = translation.results(variables, wanted)
            if draws.places:
                returned.insert(len(returned) - len(gradients), draws.next_counter(builder))
                states[COUNTER] = np.zeros(1, np.int32)
            output = builder.emit_output(returned[0] if len(returned) == 1 else relax.Tuple(returned))
        counter = [draws.counter] if draws.places else []
        builder.emit_func_output(output, [*(variables[node] for node in order), *counter])
    return Imported(
        builder.finalize(), arrays[Role.INPUT], arrays[Role.PARAMETER], states, lines=builder.lines,
        check=translation.checks, gradients=tuple(gradients) if trains else None, counters=counters,
        places=translation.places,
    )  # fmt: skip


def _added(graph: fx.Graph, node: fx.Node) -> int | None:
    """Return the number that a step adds to a state, if `node` is its new value and nothing else reads the state.

    Batch norm counts its steps so, and no operator reads the count: it needs no kernel.
    """
    added, (user,) = 0, graph.find_nodes(op="output")
    while set(node.users) == {user}:
        if node.op == "placeholder":
            return added
        if node.target is not torch.ops.aten.add.Tensor or not isinstance(node.args[1], int):
            return None
        added, user, node = added + node.args[1], node, node.args[0]
    return None


def _role(role: Role, value: torch.Tensor, *, trains: bool, changes: bool) -> Role:
    """Return the role in the step of a module's tensor: a constant where a step that trains leaves it unchanged."""
    if role is Role.STATE and not changes:
        return Role.CONSTANT if trains or not value.is_floating_point() else Role.PARAMETER
    return Role.CONSTANT if role is Role.PARAMETER and trains and not value.requires_grad else role


def _array(value: torch.Tensor) -> Array:
    array: Array = value.detach().cpu().contiguous().numpy()
    return array


class Translation:
    """Operators of a graph as kernels of ours or of PyTorch, one after the other; `places` is as `Imported.places`."""

    def __init__(self, graph: fx.Graph, known: Mapping[fx.Node, Any], checks: IndexChecks, kernels: Kernels) -> None:
        """Begin with no operator; `known` are the values of nodes that depend on no argument."""
        self._graph, self.checks = graph, checks
        self.importer = importer = JointImporter()
        importer.draws, importer.known, importer.forwards, importer.products = Draws(), known, {}, {}
        importer._check_unsupported_func_type = lambda _nodes: None  # noqa: SLF001  (we name the line of each)
        self.builder = importer.block_builder = LinedBuilder.empty()
        self._framework = None if kernels == "tvm" else FrameworkKernels(importer, all_of_them=kernels == "torch")
        self.places: dict[str, tuple[int, bool]] = {}

    def results(self, variables: Mapping[fx.Node, relax.Var], wanted: Sequence[fx.Node]) -> list[relax.Expr]:
        """Emit the operators that some nodes depend on, given the arguments' variables; return the nodes' values."""
        importer, known, framework = self.importer, self.importer.known, self._framework
        importer.env |= variables
        needed = _needed(self._graph, wanted)
        for node in self._graph.nodes:
            if node not in needed or node in variables:
                continue
            if node in known:
                if node in wanted or any(user in needed and user not in known for user in node.users):
                    value = known[node]
                    importer.env[node] = importer.constant(value) if isinstance(value, torch.Tensor) else value
            elif framework is not None and framework.all_of_them and node not in wanted and is_view(node):
                continue
            elif node.op == "call_function":
                self.builder.place = partial(where, node)
                drawn = importer.draws.places
                importer.env[node] = self._converted(node)
                if importer.draws.places > drawn:
                    self.places[node.name] = drawn + 1, drawn + 1 in importer.draws.own
        missing = [node for node in wanted if importer.env.get(node) is None]
        if missing and framework is None:
            raise _refused(missing[0], BadInputError("its kernel here leaves it out"))
        # PyTorch computes results that kernels of ours leave out, positions of maxima say.
        importer.env |= {node: framework.value(node) for node in missing if framework is not None}
        return [importer.env[node] for node in wanted]

    def _converted(self, node: fx.Node) -> Any:
        """Compute a node by kernels of ours or of PyTorch."""
        own: Exception | None = None
        framework = self._framework
        if framework is None or not (framework.all_of_them or is_foreign(node) or is_degenerate(node)):
            try:
                return self._own(node)
            except Exception as error:
                if framework is None:
                    raise _refused(node, error) from error
                own = error
        try:
            return framework.convert(node)
        except BadInputError as error:
            raise _refused(node, own or error, error) from own

    def _check_indices(self, node: fx.Node) -> None:
        """Refuse an operator whose indices may be out of range when the step runs."""
        self.checks.check_sources(node)

    def _own(self, node: fx.Node) -> Any:
        if is_foreign(node):
            raise BadInputError("it takes or gives numbers of a type that no kernel here computes with: call .float()")
        name, importer = node.target.__name__, self.importer
        if name == "getitem" and isinstance(parts := importer.env[node.args[0]], tuple | list):
            return parts[node.args[1]]
        if name not in importer.convert_map:
            raise BadInputError("it has no kernel here")
        refuse_rare(node)
        if not name.startswith("scatter."):  # It compares indices with positions: one out of range writes nothing.
            self._check_indices(node)
        results = importer.convert_map[name](node)
        if isinstance(results, tuple | list):
            types = [getattr(item, "ty", None) for item in results]
        else:
            kind = getattr(results, "ty", None)
            types = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
        examples = node.meta["val"]
        examples = list(examples) if isinstance(examples, tuple | list) else [examples]
        for kind, example in zip(types, examples, strict=False):
            if kind is not None and isinstance(example, torch.Tensor) and not lies_as(kind, example):
                raise BadInputError(f"its kernel here gives {kind}")
        return results


def _needed(graph: fx.Graph, wanted: Sequence[fx.Node]) -> set[fx.Node]:
    needed = set(wanted)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


def _refused(node: fx.Node, error: Exception, by_pytorch: Exception | None = None) -> BadInputError:
    text = str(error).strip().splitlines()
    why = str(error) if isinstance(error, BadInputError) else f"{type(error).__name__}: {text[-1] if text else ''}"
    more = f"; PyTorch's own operator cannot be called either: {by_pytorch}" if by_pytorch not in (None, error) else ""
    return BadInputError(
        f"{where(node)}: operator {node.target} cannot be imported here: {why}{more}; write it with others"
    )
