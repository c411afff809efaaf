"""An ONNX file as a network with the way back to the file, with a loss where it computes scores only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from tvm import relax

from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Initial
from autotm.model.training import Sgd, Training, UpdateRule
from autotm.zoo.imported import Imported, channels_last
from autotm.zoo.layouts import CONSTANT
from autotm.zoo.network import Array, Network, Origin
from autotm.zoo.onnx.importer import GraphImporter, Kernels
from autotm.zoo.onnx.model_file import OWN_DOMAINS, Fed, InputValues, ModelFile, inputs_of, nodes_of
from autotm.zoo.onnx.operators import FIXED
from autotm.zoo.onnx.reference import OnnxReference

# Losses for files that compute scores only.

op = relax.op


@dataclass(frozen=True)
class Loss:
    """A loss of a file's first output and an input of its own, `argument`, in the shape of that output.

    `emit` writes it into the step, `compute` computes it in NumPy, for comparisons.
    """

    argument: str
    initial: Initial
    emit: Callable[[relax.BlockBuilder, relax.Expr, relax.Expr], relax.Expr]
    compute: Callable[[Array, Array], Array]


def _emit_cross_entropy(builder: relax.BlockBuilder, scores: relax.Expr, labels: relax.Expr) -> relax.Expr:
    shape = [int(extent) for extent in scores.ty.shape]
    rows, classes = math.prod(shape[:-1]), shape[-1]
    # With two axes the classes lie last in every layout, as they do in labels that are drawn.
    flat = [builder.emit(op.reshape(item, (rows, classes))) for item in (scores, labels)]
    products = op.multiply(builder.emit(op.nn.log_softmax(flat[0], axis=-1)), flat[1])
    total = builder.emit(op.sum(builder.emit(products)))
    return builder.emit(op.multiply(total, relax.const(-1.0 / rows, "float32")))


def _cross_entropy(scores: Array, labels: Array) -> Array:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.asarray(-(logarithms * labels).sum(axis=-1).mean())


def _emit_mse(builder: relax.BlockBuilder, output: relax.Expr, targets: relax.Expr) -> relax.Expr:
    difference = builder.emit(op.subtract(output, targets))
    total = builder.emit(op.sum(builder.emit(op.multiply(difference, difference))))
    return builder.emit(op.multiply(total, relax.const(1.0 / math.prod(map(int, output.ty.shape)), "float32")))


LOSSES = {
    "cross_entropy": Loss("labels", Initial("one_hot"), _emit_cross_entropy, _cross_entropy),
    "mse": Loss("targets", Initial("normal"), _emit_mse, lambda y, targets: np.asarray(np.square(y - targets).mean())),
}
"""By name, as PyTorch's functions with their defaults: the mean cross-entropy of softmax and one-hot labels, classes
along the last axis; the mean squared difference."""


_DEFAULT = Training(Sgd(0.001))
_MASKED = 1e9
"""Numbers as large are no weights: masks hold them, or infinity, to make a softmax zero."""
_TAKEN = {"loss", "output", *LOSSES, *(loss.argument for loss in LOSSES.values())}


def from_onnx(
    path: Path | str,
    *,
    inputs: InputValues | None = None,
    sizes: Mapping[str, int] | None = None,
    loss: str | None = None,
    mode: Literal["train", "inference"] | None = None,
    training: Training | UpdateRule | None = None,
    fixed: Collection[str] = (),
    kernels: Kernels = "auto",
    name: str | None = None,
) -> Network:
    """Return the step that infers with an ONNX file, or trains it.

    Every initializer that is float32, no scalar and no mask (infinite, or beyond 1e9) is a parameter, by its name in
    the file. What depends on constants alone is computed here. The statistics of batch norm are constants, as in a
    file they are, and training leaves them alone. Exporters keep tensors of equal values once: these train as one.

    Args:
        path: of the file; its external data lies beside it.
        inputs: an array or a shape for each input by name; or arrays in the file's order. Inputs without a value are
            drawn from the run's seed: N(0, 1), or whole numbers below the rows of the table that they look up (0 and 1
            where there is none). Those without a shape have the file's.
        sizes: free dimensions by name, e.g. `{"batch": 8}`.
        loss: what training descends: `cross_entropy` of the file's first output (classes along the last axis) and an
            input `labels`, one-hot; `mse` of that output and an input `targets`; None if the file's one output is the
            loss.
        mode: `train` or `inference`; by default `train` where a loss or training is given.
        training: rules of ours; plain SGD with a learning rate of 0.001 if None.
        fixed: names or patterns (`*.mask`) of initializers that are not trained.
        kernels: `auto`: ours, and ONNX's own reference for nodes that have none here, but for those that training needs
            gradients of; `tvm`: ours alone.
        name: of the network, in small letters, digits and _; by default the file's.

    Raises:
        BadInputError: the file is missing, damaged, or has what cannot be imported, with
            the name of its node; a free dimension without a size; no such input; its output is no loss.
    """
    if mode not in (None, "train", "inference"):
        raise BadInputError(f"mode: {mode!r} is neither 'train' nor 'inference'")
    if not isinstance(training, Training | UpdateRule | None):
        raise BadInputError(
            f"training: a {type(training).__name__}: a file takes Training, Sgd, Adam or AdamW of autotm"
        )
    if kernels not in get_args(Kernels):
        raise unknown_name("value of kernels for a file", kernels, get_args(Kernels))
    trains = mode == "train" or (mode is None and (loss is not None or training is not None))
    if not trains and (loss is not None or training is not None):
        raise BadInputError(f"{path}: mode='inference' takes neither loss nor training; leave them out")
    if loss is not None and loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    path = Path(path)
    file = ModelFile.read(path)
    fed = inputs_of(path, file.graph, inputs, sizes or {})
    names = {old: f"input_{old}" if old in _TAKEN or old.startswith("output.") else old for old in fed}
    step = _Step(file, fed, names, loss, trains, tuple(fixed), kernels)
    as_read, _ = step.imported()
    turned = channels_last(as_read)
    batches = [item.shape[0] for item in fed.values() if item.shape]
    kept = {key: value for key, value in file.initializers.items() if key not in turned.parameters}
    data = [key for key in turned.inputs if not key.startswith(CONSTANT) and key not in names.values()]
    origin = Origin(
        (*names.values(), *data), turned.turned, tuple(turned.parameters), kept=kept, lines=turned.lines,
        check=as_read.check, reference=step.reference(as_read),
    )  # fmt: skip
    name = name or re.sub(r"[^a-z0-9_]", "_", path.stem.lower())
    rules = training if isinstance(training, Training | None) else Training(training)
    rules = (rules or _DEFAULT) if trains else None
    batch = batches[0] if batches else 1
    return Network(name, batch, turned.module, turned.inputs, turned.parameters, rules, origin=origin)


@dataclass(frozen=True)
class _Step:
    """A file and the options by which it is imported; `names` are those of the step by those of the file's inputs."""

    file: ModelFile
    fed: Mapping[str, Fed]
    names: Mapping[str, str]
    loss: str | None
    trains: bool
    fixed: Sequence[str]
    kernels: Kernels

    def imported(self, *, in_detail: bool = False) -> tuple[Imported, list[str]]:
        """Return the file in Relax and the names of all nodes' results, which are the outputs if `in_detail`."""
        file, fed, names = self.file, self.fed, self.names
        empty = {name: np.zeros(item.shape, item.dtype) for name, item in fed.items() if 0 in item.shape}
        taken = {name: item for name, item in fed.items() if name not in empty}
        variables = {
            name: relax.Var(names[name], relax.TensorType(item.shape, item.dtype)) for name, item in taken.items()
        }
        weights = self._weights()
        importer = GraphImporter(file, variables, weights, empty, trains=self.trains, kernels=self.kernels)
        builder, inputs = importer.builder, {names[name]: item.fill for name, item in taken.items()}
        with builder.function("main"):
            with builder.dataflow():
                outputs, arguments = importer.write(file.graph), list(variables.values())
                builder.place = None
                if in_detail:
                    outputs = list(importer.results.values())
                elif self.loss is not None:
                    loss = LOSSES[self.loss]
                    arguments.append(relax.Var(loss.argument, outputs[0].ty))
                    inputs[loss.argument] = loss.initial
                    outputs = [loss.emit(builder, outputs[0], arguments[-1])]
                elif self.trains:
                    outputs = [self._own_loss(builder, outputs)]
                output = builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
            builder.emit_func_output(output, [*arguments, *importer.parameters.values()])
        importer.checks({name: fill for name, fill in inputs.items() if isinstance(fill, np.ndarray)})
        parameters = {name: file.initializers[name] for name in importer.parameters}
        step = Imported(builder.finalize(), inputs, parameters, {}, lines=builder.lines, check=importer.checks)
        return step, list(importer.results)

    def reference(self, as_read: Imported) -> OnnxReference | None:
        """Return the reference that the step is compared with; None where ONNX's reference lacks an operator."""
        if any(node.domain not in OWN_DOMAINS for node in nodes_of(self.file.graph)):
            return None

        def outputs(several: Sequence[Array], values: Mapping[str, Array]) -> Sequence[Array]:
            if self.loss is not None:
                loss = LOSSES[self.loss]
                return [loss.compute(several[0], values[loss.argument])]
            return [several[0].reshape(())] if self.trains else several

        def detailed() -> tuple[Imported, list[str]]:
            step, results = replace(self, loss=None).imported(in_detail=True)
            return channels_last(step), results

        read = {source: name for source, name in self.names.items() if name in as_read.inputs}
        return OnnxReference(self.file, read, list(as_read.parameters), outputs, detailed)

    def _weights(self) -> set[str]:
        """Return the initializers that become parameters: read as weights, not fixed, float32, no scalar, no mask."""
        values, graph = self.file.initializers, self.file.graph
        for pattern in self.fixed:
            if not any(fnmatchcase(name, pattern) for name in values):
                raise unknown_name(f"initializer of {self.file.path}", pattern, values)
        asked, source = set(), {name: name for name in values}
        for node in nodes_of(graph):
            if node.op_type == "Identity" and node.input[0] in source:
                source[node.output[0]] = source[node.input[0]]
                continue
            fixed = FIXED.get(node.op_type, ())
            asked |= {source[name] for index, name in enumerate(node.input) if name in source and index not in fixed}
        asked |= {source[item.name] for item in graph.output if item.name in source}
        frozen = {name for name in asked if self.trains and any(fnmatchcase(name, item) for item in self.fixed)}
        arrays = {name: values[name] for name in asked - frozen}
        floats = {
            name: value for name, value in arrays.items() if value.dtype == np.float32 and value.ndim and value.size
        }
        return {name for name, value in floats.items() if np.all(np.abs(value) < _MASKED)}

    def _own_loss(self, builder: relax.BlockBuilder, outputs: Sequence[relax.Expr]) -> relax.Expr:
        """Return the file's one output, a scalar, which the step descends."""
        shape = [int(extent) for extent in outputs[0].ty.shape]
        if len(outputs) > 1 or any(extent != 1 for extent in shape):
            shapes = ", ".join(str([int(extent) for extent in output.ty.shape]) for output in outputs)
            raise BadInputError(
                f"{self.file.path}: training needs one number to descend, the file's outputs are {shapes}; give loss=, "
                f"one of {', '.join(LOSSES)}, or export the network with its loss"
            )
        return builder.emit(op.reshape(outputs[0], ())) if shape else outputs[0]
