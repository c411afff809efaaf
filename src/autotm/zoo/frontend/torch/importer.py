"""A captured step in Relax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax

from autotm.model.files import BadInputError
from autotm.model.step import Role
from autotm.zoo.frontend.imported import Imported
from autotm.zoo.frontend.lined import LinedBuilder
from autotm.zoo.frontend.random_numbers import COUNTER, Draws
from autotm.zoo.frontend.torch.backward import JointImporter
from autotm.zoo.frontend.torch.capture import Captured
from autotm.zoo.frontend.torch.constants import constant_values
from autotm.zoo.frontend.torch.indices import IndexChecks
from autotm.zoo.frontend.torch.program import where

Array = npt.NDArray[Any]


def imported_step(captured: Captured, *, trains: bool) -> Imported:
    """A captured step in Relax, with its parameters, running averages and inputs.

    Args:
        captured: by `capture`.
        trains: whether parameters are trained; else everything that has a value but the inputs is a parameter.

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
        if used_as is Role.CONSTANT:
            fixed[node] = value.detach()
        elif node.users or used_as is Role.STATE:
            kinds[used_as][name] = value
            variables[node] = _variable(name, value)
    order = [node for role in kinds for node in variables if captured.arguments[node][1] in kinds[role]]
    importer = JointImporter()
    importer.draws, importer.forwards, importer.products = Draws(), {}, {}
    known = importer.known = constant_values(captured.graph, fixed)
    builder = importer.block_builder = LinedBuilder.empty()
    gradients = {name: node for name, node in captured.gradients.items() if name in kinds[Role.PARAMETER]}
    states = {name: _array(value) for name, value in kinds[Role.STATE].items()}
    with builder.function("main"):
        with builder.dataflow():
            wanted = [*captured.outputs, *(updates[name] for name in states), *gradients.values()]
            returned = _translate(captured.graph, importer, variables, known, wanted)
            if importer.draws.is_used:
                returned.insert(len(returned) - len(gradients), importer.draws.next_counter(builder))
                states[COUNTER] = np.zeros(1, np.int32)
            output = builder.emit_output(returned[0] if len(returned) == 1 else relax.Tuple(returned))
        counter = [importer.draws.counter] if importer.draws.is_used else []
        builder.emit_func_output(output, [*(variables[node] for node in order), *counter])
    inputs, parameters = (
        {name: _array(value) for name, value in kinds[role].items()} for role in (Role.INPUT, Role.PARAMETER)
    )
    checks = IndexChecks(
        captured.graph,
        {node.name: name for node, (role, name) in captured.arguments.items() if role is Role.INPUT},
        known,
    )
    return Imported(
        builder.finalize(), inputs, parameters, states, lines=builder.lines, check=checks,
        gradients=tuple(gradients) if trains else None, counters=counters,
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
    found: Array = value.detach().cpu().contiguous().numpy()
    return found


def _translate(
    graph: fx.Graph,
    importer: JointImporter,
    variables: Mapping[fx.Node, relax.Var],
    known: Mapping[fx.Node, Any],
    wanted: Sequence[fx.Node],
) -> list[relax.Expr]:
    """The results that are wanted of a graph."""
    importer._check_unsupported_func_type = lambda _nodes: None  # noqa: SLF001  (we name the line of each)
    importer.env |= variables
    needed = _needed(graph, wanted)
    for node in graph.nodes:
        if node not in needed or node in variables:
            continue
        if node in known:
            if node in wanted or any(user in needed and user not in known for user in node.users):
                value = known[node]
                importer.env[node] = importer.constant(value) if isinstance(value, torch.Tensor) else value
        elif node.op == "call_function":
            importer.block_builder.place = partial(where, node)
            importer.env[node] = _converted(importer, node)
    return [importer.env[node] for node in wanted]


def _needed(graph: fx.Graph, wanted: Sequence[fx.Node]) -> set[fx.Node]:
    found = set(wanted)
    for node in reversed(graph.nodes):
        if node in found:
            found.update(node.all_input_nodes)
    return found


def _converted(importer: JointImporter, node: fx.Node) -> Any:
    name = node.target.__name__
    if name == "getitem":
        source, index = node.args
        found = importer.env[source]
        return found[index] if isinstance(found, tuple | list) else importer.convert_map[name](node)
    if name not in importer.convert_map:
        raise BadInputError(f"{where(node)}: operator {node.target} cannot be imported yet; write it with others")
    try:
        return importer.convert_map[name](node)
    except BadInputError as error:
        raise BadInputError(f"{where(node)}: operator {node.target}: {error}") from None
    except Exception as error:
        text = str(error).strip().splitlines()
        raise BadInputError(
            f"{where(node)}: operator {node.target} cannot be imported here: {type(error).__name__}: "
            f"{text[-1] if text else ''}; write it with others"
        ) from error
