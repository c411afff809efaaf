"""A captured step in Relax, and checks of its inputs before it runs: indices in range, assertions that hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax

from autotm.capture import Captured
from autotm.model.errors import BadInputError
from autotm.model.graph import Role
from autotm.zoo.imported import Imported, LinedBuilder
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

# Checks of a step's inputs before it runs: indices lie within what they index, the module's assertions hold.

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
class _Use:
    """Indices of a node, and the first and the last that its operator takes."""

    indices: fx.Node
    node: fx.Node
    first: int
    last: int


class IndexChecks:
    """Checks of the indices and assertions that a graph computes from its integer inputs alone."""

    def __init__(self, graph: fx.Graph, inputs: Mapping[str, str], known: Mapping[fx.Node, Any]) -> None:
        """Collect them from a graph.

        Args:
            graph: of PyTorch's operators.
            inputs: the name of the input behind a placeholder, by the placeholder's.
            known: the values of nodes that depend on no argument.
        """
        self._known, self._inputs = known, inputs
        self._names: dict[fx.Node, frozenset[str]] = dict.fromkeys(known, frozenset())
        for node in graph.nodes:
            if node in known or not _is_whole(node):
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
        self._uses = [use for node in graph.nodes for use in _uses(node) if self._names.get(use.indices)]

    def check_sources(self, node: fx.Node) -> None:
        """Refuse an operator of ours whose indices nobody checks.

        Raises:
            BadInputError: they come from other operators, which may give any; kernels of ours would read elsewhere.
        """
        for use in _uses(node):
            if use.indices not in self._names and not _is_rank(use.indices, use.last + 1):
                raise BadInputError(
                    f"its indices, {use.indices.name}, are computed in the step, where nothing checks them"
                )

    def __call__(self, values: Mapping[str, Array]) -> None:
        """Check the indices and assertions.

        Args:
            values: of inputs by name, as the source has them; indices that come from others are not checked.

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


def _is_whole(node: fx.Node) -> bool:
    """Whether it gives one tensor of whole numbers or truth values."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _uses(node: fx.Node) -> Iterator[_Use]:
    """The indices among a node's arguments."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - no other name
        return
    name = node.target.overloadpacket.__name__
    if name == "embedding":
        table, indices = node.args[:2]
        yield _use(node, indices, _shape(table)[0], is_signed=False)
    elif name in _ALONG_AN_AXIS:
        tensor, axis, indices = node.args[:3]
        yield _use(node, indices, _shape(tensor)[axis] if _shape(tensor) else 1, is_signed=False)
    elif name in _FROM_THE_END_TOO:
        tensor, several = node.args[:2]
        for axis, indices in enumerate(several):
            if isinstance(indices, fx.Node) and indices.meta["val"].dtype != torch.bool:
                yield _use(node, indices, _shape(tensor)[axis], is_signed=True)


def _is_rank(node: fx.Node, extent: int) -> bool:
    """Whether indices are places of the largest along an axis of no more than so many elements: chosen experts, say."""
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


def _use(node: fx.Node, indices: Any, extent: int, *, is_signed: bool) -> _Use:
    return _Use(indices, node, -extent if is_signed else 0, extent - 1)


def _shape(node: Any) -> Sequence[int]:
    return [int(extent) for extent in node.meta["val"].shape]


# A captured step in Relax.

Array = npt.NDArray[Any]
Kernels = Literal["auto", "tvm", "torch"]


def imported_step(captured: Captured, *, trains: bool, kernels: Kernels) -> Imported:
    """A captured step in Relax, with its parameters, running averages and inputs.

    Args:
        captured: by `capture`.
        trains: whether parameters are trained; else everything that has a value but the inputs is a parameter.
        kernels: whose: `auto` (ours, and PyTorch's for operators that have none here), `tvm` (ours alone), or `torch`
            (PyTorch's alone).

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
            variables[node] = _variable(name, value)
    order = [node for role in kinds for node in variables if captured.arguments[node][1] in kinds[role]]
    importer = JointImporter()
    importer.draws, importer.forwards, importer.products = Draws(), {}, {}
    framework = None if kernels == "tvm" else FrameworkKernels(importer, all_of_them=kernels == "torch")
    known = importer.known = constant_values(captured.graph, fixed)
    checks = IndexChecks(
        captured.graph,
        {node.name: name for node, (role, name) in captured.arguments.items() if role is Role.INPUT},
        known,
    )
    builder = importer.block_builder = LinedBuilder.empty()
    places: dict[str, tuple[int, bool]] = {}
    gradients = {name: node for name, node in captured.gradients.items() if name in kinds[Role.PARAMETER]}
    states = {name: _array(value) for name, value in kinds[Role.STATE].items()}
    with builder.function("main"):
        with builder.dataflow():
            wanted = [*captured.outputs, *(updates[name] for name in states), *gradients.values()]
            returned = _translate(captured.graph, importer, framework, checks, variables, wanted, places)
            if importer.draws.is_used:
                returned.insert(len(returned) - len(gradients), importer.draws.next_counter(builder))
                states[COUNTER] = np.zeros(1, np.int32)
            output = builder.emit_output(returned[0] if len(returned) == 1 else relax.Tuple(returned))
        counter = [importer.draws.counter] if importer.draws.is_used else []
        builder.emit_func_output(output, [*(variables[node] for node in order), *counter])
    inputs, parameters = (
        {name: _array(value) for name, value in kinds[role].items()} for role in (Role.INPUT, Role.PARAMETER)
    )
    return Imported(
        builder.finalize(), inputs, parameters, states, lines=builder.lines, check=checks,
        gradients=tuple(gradients) if trains else None, counters=counters,
        places=places,
    )  # fmt: skip


def _added(graph: fx.Graph, node: fx.Node) -> int | None:
    """What a step adds to a state whose new value a node is, if that is all that is done with the state.

    Batch norm counts its steps so, for nobody: a kernel for that would be a waste.
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
    """What a tensor of the module is to the step: what a step that trains leaves as it is becomes a constant."""
    if role is Role.STATE and not changes:
        return Role.CONSTANT if trains or not value.is_floating_point() else Role.PARAMETER
    return Role.CONSTANT if role is Role.PARAMETER and trains and not value.requires_grad else role


def _variable(name: str, value: torch.Tensor) -> relax.Var:
    return relax.Var(name, relax.TensorType(tuple(value.shape), str(value.dtype).removeprefix("torch.")))


def _array(value: torch.Tensor) -> Array:
    array: Array = value.detach().cpu().contiguous().numpy()
    return array


def _translate(
    graph: fx.Graph,
    importer: JointImporter,
    framework: FrameworkKernels | None,
    checks: IndexChecks,
    variables: Mapping[fx.Node, relax.Var],
    wanted: Sequence[fx.Node],
    places: dict[str, tuple[int, bool]],
) -> list[relax.Expr]:
    """The results that are wanted of a graph; notes the places where it draws random numbers."""
    importer._check_unsupported_func_type = lambda _nodes: None  # noqa: SLF001  (we name the line of each)
    importer.env |= variables
    needed, known = _needed(graph, wanted), importer.known
    for node in graph.nodes:
        if node not in needed or node in variables:
            continue
        if node in known:
            if node in wanted or any(user in needed and user not in known for user in node.users):
                value = known[node]
                importer.env[node] = importer.constant(value) if isinstance(value, torch.Tensor) else value
        elif framework is not None and framework.all_of_them and node not in wanted and is_view(node):
            continue
        elif node.op == "call_function":
            importer.block_builder.place = partial(where, node)
            drawn = importer.draws.places
            importer.env[node] = _converted(importer, framework, checks, node)
            if importer.draws.places > drawn:
                places[node.name] = drawn + 1, drawn + 1 in importer.draws.own
    missing = [node for node in wanted if importer.env.get(node) is None]
    if missing and framework is None:
        raise _refused(missing[0], BadInputError("its kernel here leaves it out"))
    # What kernels of ours leave out, places of maxima say, PyTorch computes.
    importer.env |= {node: framework.value(node) for node in missing if framework is not None}
    return [importer.env[node] for node in wanted]


def _needed(graph: fx.Graph, wanted: Sequence[fx.Node]) -> set[fx.Node]:
    needed = set(wanted)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


def _converted(importer: JointImporter, framework: FrameworkKernels | None, checks: IndexChecks, node: fx.Node) -> Any:
    """What a node computes, by kernels of ours or of PyTorch."""
    own: Exception | None = None
    if framework is None or not (framework.all_of_them or is_foreign(node) or is_degenerate(node)):
        try:
            return _own(importer, checks, node)
        except Exception as error:
            if framework is None:
                raise _refused(node, error) from error
            own = error
    try:
        return framework.convert(node)
    except BadInputError as error:
        raise _refused(node, own or error, error) from own


def _own(importer: JointImporter, checks: IndexChecks, node: fx.Node) -> Any:
    if is_foreign(node):
        raise BadInputError("it takes or gives numbers of a type that no kernel here computes with: call .float()")
    name = node.target.__name__
    if name == "getitem" and isinstance(parts := importer.env[node.args[0]], tuple | list):
        return parts[node.args[1]]
    if name not in importer.convert_map:
        raise BadInputError("it has no kernel here")
    refuse_rare(node)
    if not name.startswith("scatter."):  # These compare indices with places: no index leads elsewhere.
        checks.check_sources(node)
    results = importer.convert_map[name](node)
    types = [getattr(item, "ty", None) for item in results] if isinstance(results, tuple | list) else _types(results)
    examples = node.meta["val"]
    examples = list(examples) if isinstance(examples, tuple | list) else [examples]
    for kind, example in zip(types, examples, strict=False):
        if kind is not None and isinstance(example, torch.Tensor) and not lies_as(kind, example):
            raise BadInputError(f"its kernel here gives {kind}")
    return results


def _types(value: Any) -> list[Any]:
    """Types of the parts of a value."""
    if not isinstance(value, relax.Expr):
        return []
    return list(value.ty.fields) if isinstance(value.ty, relax.TupleType) else [value.ty]


def _refused(node: fx.Node, error: Exception, by_pytorch: Exception | None = None) -> BadInputError:
    text = str(error).strip().splitlines()
    why = str(error) if isinstance(error, BadInputError) else f"{type(error).__name__}: {text[-1] if text else ''}"
    more = f"; PyTorch's own operator cannot be called either: {by_pytorch}" if by_pytorch not in (None, error) else ""
    return BadInputError(
        f"{where(node)}: operator {node.target} cannot be imported here: {why}{more}; write it with others"
    )
