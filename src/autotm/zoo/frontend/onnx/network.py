"""What is imported of an ONNX file, as a network with the way back to the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotm.model.files import BadInputError, unknown_name
from autotm.model.step import Sgd, Training
from autotm.zoo.frontend.imported import CONSTANT, Imported, channels_last
from autotm.zoo.frontend.onnx.importer import GraphImporter
from autotm.zoo.frontend.onnx.inputs import Fed, Given, inputs_of
from autotm.zoo.frontend.onnx.losses import LOSSES
from autotm.zoo.frontend.onnx.model_file import ModelFile, nodes_of
from autotm.zoo.frontend.onnx.operators import FIXED
from autotm.zoo.network import Fill, Network, Origin

Array = npt.NDArray[Any]
_DEFAULT = Training(Sgd(0.001))
_MASKED = 1e9
"""Numbers as large are no weights: masks hold them, or infinity, to make a softmax zero."""
_TAKEN = {"loss", "output", *LOSSES, "labels", "targets"}


@dataclass(frozen=True)
class Options:
    """Those of `from_onnx`, with what is left out filled in.

    Attributes:
        inputs, sizes, loss, fixed: as there.
        training: None for plain SGD.
        trains: whether the step does.
    """

    inputs: Given | None
    sizes: Mapping[str, int]
    loss: str | None
    training: Training | None
    trains: bool
    fixed: Sequence[str]


def network_of(path: Path, name: str, options: Options) -> Network:
    """The network of a file.

    Raises:
        BadInputError: as `from_onnx`.
    """
    if options.loss is not None and options.loss not in LOSSES:
        raise unknown_name("loss", options.loss, LOSSES)
    file = ModelFile.read(path)
    fed = inputs_of(path, file.graph, options.inputs, options.sizes)
    names = {given: f"input_{given}" if given in _TAKEN or given.startswith("output.") else given for given in fed}
    found = channels_last(_imported(file, fed, names, options))
    training = (options.training or _DEFAULT) if options.trains else None
    batches = [item.shape[0] for item in fed.values() if item.shape]
    kept = {given: value for given, value in file.initializers.items() if given not in found.parameters}
    data = [given for given in found.inputs if not given.startswith(CONSTANT) and given not in names.values()]
    origin = Origin((*names.values(), *data), found.turned, tuple(found.parameters), kept=kept, lines=found.lines)
    batch = batches[0] if batches else 1
    return Network(name, batch, found.module, found.inputs, found.parameters, training, origin=origin)


def _imported(file: ModelFile, fed: Mapping[str, Fed], names: Mapping[str, str], options: Options) -> Imported:
    variables = {
        given: relax.Var(names[given], relax.TensorType(item.shape, item.dtype)) for given, item in fed.items()
    }
    importer = GraphImporter(file, variables, _weights(file, options), trains=options.trains)
    builder, inputs = importer.builder, {names[given]: item.fill for given, item in fed.items()}
    with builder.function("main"):
        with builder.dataflow():
            outputs, arguments = importer.write(file.graph), list(variables.values())
            builder.place = None
            if options.trains:
                outputs = [_loss(file, builder, outputs, options.loss, arguments, inputs)]
            output = builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        builder.emit_func_output(output, [*arguments, *importer.parameters.values()])
    parameters = {given: file.initializers[given] for given in importer.parameters}
    return Imported(builder.finalize(), inputs, parameters, {}, lines=builder.lines)


def _weights(file: ModelFile, options: Options) -> set[str]:
    """Initializers that become parameters: float32, no scalars or masks, and asked for where values are not fixed."""
    for pattern in options.fixed:
        if not any(fnmatchcase(name, pattern) for name in file.initializers):
            raise unknown_name(f"initializer of {file.path}", pattern, file.initializers)
    asked, source = set(), {name: name for name in file.initializers}
    for node in nodes_of(file.graph):
        if node.op_type == "Identity" and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
            continue
        fixed = FIXED.get(node.op_type, ())
        asked |= {source[name] for index, name in enumerate(node.input) if name in source and index not in fixed}
    asked |= {source[item.name] for item in file.graph.output if item.name in source}
    frozen = {name for name in asked if options.trains and any(fnmatchcase(name, item) for item in options.fixed)}
    return {name for name in asked - frozen if _is_weight(file.initializers[name])}


def _is_weight(value: Array) -> bool:
    is_float = value.dtype == np.float32 and value.ndim > 0
    return is_float and bool(np.all(np.abs(value) < _MASKED))


def _loss(
    file: ModelFile,
    builder: relax.BlockBuilder,
    outputs: Sequence[relax.Expr],
    loss: str | None,
    arguments: list[relax.Var],
    inputs: dict[str, Fill],
) -> relax.Expr:
    """What the step descends; the input that a loss of ours takes is added to the arguments and inputs."""
    if loss is not None:
        found, name, variable, initial = LOSSES[loss](builder, outputs[0])
        arguments.append(variable)
        inputs[name] = initial
        return found
    shape = [int(extent) for extent in outputs[0].ty.shape]
    if len(outputs) > 1 or any(extent != 1 for extent in shape):
        shapes = ", ".join(str([int(extent) for extent in output.ty.shape]) for output in outputs)
        raise BadInputError(
            f"{file.path}: training needs one number to descend, the file's outputs are {shapes}; give loss=, one of "
            f"{', '.join(LOSSES)}, or export the network with its loss"
        )
    return builder.emit(relax.op.reshape(outputs[0], ())) if shape else outputs[0]
