"""An exported program as a step in Relax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax

from autotm.model.files import AutotmError, BadInputError
from autotm.zoo.frontend.imported import Imported
from autotm.zoo.frontend.lined import LinedBuilder
from autotm.zoo.frontend.random_numbers import COUNTER, Draws
from autotm.zoo.frontend.torch.constants import constant_values
from autotm.zoo.frontend.torch.indices import IndexChecks
from autotm.zoo.frontend.torch.operators import TrainingImporter
from autotm.zoo.frontend.torch.program import where

Array = npt.NDArray[Any]
_PREFIX = "module."
"""Of names in the exported step: the user's module is a part of it."""
COUNTERS = "num_batches_tracked"
"""Batch norm counts its steps in these, for nobody: kernels for them would be a waste."""


@dataclass(frozen=True)
class _Roles:
    """What the placeholders of a program are: the tensor behind each, by name of the placeholder."""

    inputs: Mapping[str, torch.Tensor]
    parameters: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor]
    fixed: Mapping[str, torch.Tensor]
    new_states: Mapping[str, str]
    names: Mapping[str, str]


def imported_program(
    program: torch.export.ExportedProgram, input_names: Sequence[str], values: Sequence[Any], *, trains: bool
) -> Imported:
    """The step that a program computes, with its parameters, running averages and inputs.

    Args:
        program: of `program.exported`.
        input_names: of the inputs that it was exported with.
        values: theirs.
        trains: whether parameters are trained; else everything that has a value but the inputs is a parameter.

    Raises:
        BadInputError: an operator that cannot be imported, with the line of the user's code that it comes from.
    """
    roles = _roles(program, zip(input_names, values, strict=True), trains)
    importer = TrainingImporter()
    importer.draws = Draws()
    known = importer.known = constant_values(program, roles.fixed)
    variables = {name: _variable(roles.names[name], value) for name, value in _arguments(roles).items()}
    builder = importer.block_builder = LinedBuilder.empty()
    with builder.function("main"):
        with builder.dataflow():
            outputs = _translate(program, importer, variables, known)
            by_name = dict(outputs)
            news = [by_name[name] for name in roles.new_states]
            states = {roles.names[old]: _array(roles.states[old]) for old in roles.new_states.values()}
            if importer.draws.is_used:
                news.append(importer.draws.next_counter(builder))
                states[COUNTER] = np.zeros(1, np.int32)
            kept = [expression for name, expression in outputs if name not in roles.new_states]
            returned = [*kept, *news]
            output = builder.emit_output(returned[0] if len(returned) == 1 else relax.Tuple(returned))
        counter = [importer.draws.counter] if importer.draws.is_used else []
        builder.emit_func_output(output, [*variables.values(), *counter])
    inputs = {roles.names[name]: _array(value) for name, value in roles.inputs.items()}
    parameters = {roles.names[name]: _array(value) for name, value in roles.parameters.items()}
    checks = IndexChecks(program.graph, {name: roles.names[name] for name in roles.inputs}, known)
    return Imported(builder.finalize(), inputs, parameters, states, lines=builder.lines, check=checks)


def _arguments(roles: _Roles) -> dict[str, torch.Tensor]:
    return {**roles.inputs, **roles.parameters, **roles.states}


def _variable(name: str, value: torch.Tensor) -> relax.Var:
    return relax.Var(name, relax.TensorType(tuple(value.shape), str(value.dtype).removeprefix("torch.")))


def _array(value: torch.Tensor) -> Array:
    found: Array = value.detach().cpu().contiguous().numpy()
    return found


def _roles(program: torch.export.ExportedProgram, user: Iterator[tuple[str, Any]], trains: bool) -> _Roles:
    """Sort a program's placeholders by what they are to a step."""
    kinds = torch.export.graph_signature.InputKind
    signature = program.graph_signature
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    outputs = torch.export.graph_signature.OutputKind
    changed = {
        spec.target: spec.arg.name
        for spec in signature.output_specs
        if spec.kind is outputs.BUFFER_MUTATION and not (spec.target or "").endswith(COUNTERS)
    }
    inputs, parameters, states, fixed, names, new = {}, {}, {}, {}, {}, {}
    for spec in signature.input_specs:
        name, target = spec.arg.name, spec.target or ""
        names[name] = target.removeprefix(_PREFIX) or name
        if spec.kind is kinds.USER_INPUT:
            names[name], value = next(user)
            if name in used and isinstance(value, torch.Tensor):
                inputs[name] = value
            continue
        value = _value_of(program, spec)
        if spec.kind is kinds.PARAMETER and (value.requires_grad or not trains):
            parameters |= {name: value} if name in used else {}
        elif target in changed:
            states[name] = value
            new[changed[target]] = name
        else:
            fixed[name] = value
    return _Roles(inputs, parameters, states, fixed, new, names)


def _value_of(program: torch.export.ExportedProgram, spec: Any) -> torch.Tensor:
    for known in (program.state_dict, program.constants):
        if spec.target in known:
            found: torch.Tensor = known[spec.target]
            return found
    raise AutotmError(f"exported program: no value for {spec.target}")


def _translate(
    program: torch.export.ExportedProgram,
    importer: TrainingImporter,
    variables: Mapping[str, relax.Var],
    known: Mapping[fx.Node, Any],
) -> list[tuple[str, relax.Expr]]:
    """The results of the graph with their names: those the user asked for, and new values of buffers."""
    importer._check_unsupported_func_type = lambda _nodes: None  # noqa: SLF001  (we name the line of each)
    returned: list[fx.Node] = []
    for node in program.graph.nodes:
        if node.op == "output":
            returned = [item for item in node.args[0] if isinstance(item, fx.Node)]
        elif node in known:
            if any(user not in known for user in node.users):
                value = known[node]
                importer.env[node] = importer.constant(value) if isinstance(value, torch.Tensor) else value
        elif node.op == "placeholder":
            if node.name in variables:
                importer.env[node] = variables[node.name]
        elif node.op == "call_function" and (node.users or node in returned):
            importer.block_builder.place = partial(where, node)
            importer.env[node] = _converted(importer, node)
    counted = {spec.arg.name for spec in program.graph_signature.output_specs if (spec.target or "").endswith(COUNTERS)}
    for node in returned:
        if node in known and node not in importer.env:
            importer.env[node] = importer.constant(known[node])
    return [(node.name, importer.env[node]) for node in returned if node.name not in counted]


def _converted(importer: TrainingImporter, node: fx.Node) -> Any:
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
