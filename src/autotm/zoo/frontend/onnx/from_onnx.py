"""An ONNX file as a network."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, get_args

from autotm.model.files import BadInputError, unknown_name
from autotm.model.step import Training, UpdateRule
from autotm.zoo.frontend.onnx.importer import Kernels
from autotm.zoo.frontend.onnx.inputs import Given
from autotm.zoo.frontend.onnx.network import Options, network_of
from autotm.zoo.network import Network

Mode = Literal["train", "inference"]


def from_onnx(
    path: Path | str,
    *,
    inputs: Given | None = None,
    sizes: Mapping[str, int] | None = None,
    loss: str | None = None,
    mode: Mode | None = None,
    training: Training | UpdateRule | None = None,
    fixed: Collection[str] = (),
    kernels: Kernels = "auto",
    name: str | None = None,
) -> Network:
    """The step that infers with an ONNX file, or trains it.

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
    rules = training if isinstance(training, Training | None) else Training(training)
    options = Options(inputs, dict(sizes or {}), loss, rules, trains, tuple(fixed), kernels)
    return network_of(Path(path), name or _own_name(Path(path)), options)


def _own_name(path: Path) -> str:
    return re.sub(r"[^a-z0-9_]", "_", path.stem.lower())
