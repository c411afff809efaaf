"""A PyTorch module as a network."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

from autotm.model.files import BadInputError, unknown_name
from autotm.model.step import Initial, Sgd, Training, UpdateRule
from autotm.zoo.frontend.imported import CONSTANT, Imported, channels_last
from autotm.zoo.frontend.random_numbers import COUNTER
from autotm.zoo.frontend.torch.framework import restored
from autotm.zoo.frontend.torch.importer import Kernels, imported_step
from autotm.zoo.frontend.torch.program import Inputs, Loss, Mode, arguments_of, captured_step
from autotm.zoo.frontend.torch.reference import TorchReference
from autotm.zoo.frontend.torch.training import rule_states_of, training_of
from autotm.zoo.network import Network, Origin

_COUNTS = 2**30
"""Where the counter of random numbers starts is drawn below this: steps may be counted on for long."""
_DEFAULT = Training(Sgd(0.001))


def from_torch(
    module: torch.nn.Module,
    inputs: Inputs,
    *,
    loss: Loss | None = None,
    targets: Sequence[Any] = (),
    training: Training | UpdateRule | torch.optim.Optimizer | None = None,
    mode: Mode = "train",
    kernels: Kernels = "auto",
    name: str | None = None,
) -> Network:
    """The step that trains a module, or infers with it, at the shapes of the inputs.

    Weights, running averages and inputs begin with the values they have. The module itself is left as it is. Parts of
    a module in training mode that are in evaluation mode, frozen batch norms say, are imported so.

    Args:
        module: with float32 parameters on the processor.
        inputs: one tensor, a sequence of positional arguments, or a mapping of named ones.
        loss: of the module's output and the targets; None if the module returns its loss itself.
        targets: what `loss` takes behind the output: labels, say.
        training: rules of ours, or an optimizer of PyTorch over the module's parameters (SGD, Adam, AdamW), which goes
            on from the steps that it has taken; plain SGD with a learning rate of 0.001 if None.
        mode: `train`, or `inference`: forward only, the module in evaluation mode.
        kernels: `auto`: ours, and PyTorch's own for operators that have none here; `tvm`: ours alone; `torch`:
            PyTorch's alone, but for the updates of parameters.
        name: of the network, in small letters, digits and _; by default the class's.

    Raises:
        BadInputError: what cannot be imported, or an index out of range, with the line of the module's code; see
            `captured_step`.
    """
    if mode not in ("train", "inference"):
        raise BadInputError(f"mode: {mode!r} is neither 'train' nor 'inference'")
    if not isinstance(module, torch.nn.Module):
        what = type(module).__name__
        raise BadInputError(f"a {what} is no torch.nn.Module; give the module itself, not what it returns")
    if kernels not in get_args(Kernels):
        raise unknown_name("value of kernels", kernels, get_args(Kernels))
    trains = mode == "train"
    positional, named = arguments_of(inputs)
    names, values = _leaves(_input_names(module, inputs, len(targets)), [*positional, *named.values(), *targets])
    captured = captured_step(module, inputs, targets, loss, mode, names, values, decomposed=kernels != "torch")
    found = imported_step(captured, trains=trains, kernels=kernels)
    found.check({name: value for name, value in found.inputs.items() if np.issubdtype(value.dtype, np.integer)})
    reference = TorchReference(
        captured,
        found,
        lambda detailed: channels_last(imported_step(detailed, trains=trains, kernels=kernels)),
        None if found.places else captured.eager,
    )
    found = channels_last(found)
    rules = training_of(training or _DEFAULT, module, found) if trains else None
    kept = rule_states_of(training or _DEFAULT, module, found) if trains else {}
    examples = [node.meta["val"] for node in captured.outputs]

    def outputs(several: Sequence[torch.Tensor]) -> Any:
        return captured.nested([restored(value, one) for value, one in zip(several, examples, strict=True)])

    origin = replace(_origin(module, names, found, outputs), reference=reference)
    return _network(name or _own_name(module), found, rules, origin, kept)


def _network(
    name: str, found: Imported, training: Training | None, origin: Origin, kept: Mapping[str, npt.NDArray[Any]]
) -> Network:
    data = (value for name, value in found.inputs.items() if not name.startswith(CONSTANT))
    batches = [value.shape[0] for value in data if value.shape]
    counter = {COUNTER: Initial("integers", _COUNTS)}
    states = {name: counter.get(name, value) for name, value in found.states.items()}
    batch = batches[0] if batches else 1
    return Network(
        name, batch, found.module, found.inputs, found.parameters, training, states, origin, found.gradients, kept
    )


def _origin(
    module: torch.nn.Module, names: Sequence[str], found: Imported, nested: Callable[[Sequence[Any]], Any]
) -> Origin:
    """The way back to the module's own state."""
    state = module.state_dict(keep_vars=True)
    tensors = tuple(name for name in (*found.parameters, *found.states) if name in state)
    by_tensor = {id(state[name]): name for name in tensors}
    same = {name: by_tensor[id(item)] for name, item in state.items() if name not in tensors and id(item) in by_tensor}
    kept = {name: item for name, item in state.items() if name not in tensors and name not in same}
    return Origin(
        tuple(names),
        found.turned,
        tensors,
        same,
        {name: item.detach().cpu().numpy().copy() for name, item in kept.items()},
        {name: added for name, added in found.counters.items() if name in kept},
        is_torch=True,
        lines=found.lines,
        check=found.check,
        outputs=nested,
    )


def _leaves(names: Sequence[str], values: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Each tensor of the inputs with a name: those within tuples, lists and mappings are numbered."""
    found: list[tuple[str, Any]] = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, tuple | list | dict):
            found += [(f"{name}.{index}", leaf) for index, leaf in enumerate(tree_leaves(value))]
        else:
            found.append((name, value))
    return [name for name, _ in found], [leaf for _, leaf in found]


def _own_name(module: torch.nn.Module) -> str:
    return re.sub(r"[^a-z0-9_]", "_", type(module).__name__.lower())


def _input_names(module: torch.nn.Module, inputs: Inputs, targets: int) -> list[str]:
    """Names of the step's inputs: as the module calls them."""
    positional, named = arguments_of(inputs)
    parameters = inspect.signature(module.forward).parameters.values()
    known = [item.name for item in parameters if item.kind is not item.VAR_POSITIONAL][: len(positional)]
    known += [f"input_{index}" for index in range(len(known), len(positional))]
    found = [*known, *named]
    found += ["target"] if targets == 1 else [f"target_{index}" for index in range(targets)]
    taken = {name for name, _ in (*module.named_parameters(), *module.named_buffers())} | {"loss", "output"}
    return [f"input_{name}" if name in taken else name for name in found]
