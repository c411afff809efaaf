"""A captured step in Relax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax

from autotm.capture import Captured
from autotm.model.files import BadInputError
from autotm.model.step import Role
from autotm.zoo.frontend.imported import Imported
from autotm.zoo.frontend.lined import LinedBuilder
from autotm.zoo.frontend.random_numbers import COUNTER, Draws
from autotm.zoo.frontend.torch.backward import JointImporter
from autotm.zoo.frontend.torch.constants import constant_values
from autotm.zoo.frontend.torch.framework import FrameworkKernels, is_degenerate, is_foreign, is_view, lies_as
from autotm.zoo.frontend.torch.indices import IndexChecks
from autotm.zoo.frontend.torch.program import where
from autotm.zoo.frontend.torch.rare import refuse_rare

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
