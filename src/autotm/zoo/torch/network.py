"""A PyTorch module as a network, and its optimizer as update rules of ours, with what it keeps."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Initial
from autotm.model.training import STEP, Adam, AdamW, Sgd, Training, UpdateRule
from autotm.zoo.imported import Imported, channels_last
from autotm.zoo.layouts import CONSTANT
from autotm.zoo.network import Network, Origin
from autotm.zoo.torch.framework import restored
from autotm.zoo.torch.importer import Kernels, imported_step
from autotm.zoo.torch.program import Inputs, Loss, Mode, arguments_of, captured_step
from autotm.zoo.torch.random_numbers import COUNTER
from autotm.zoo.torch.reference import TorchReference

# An optimizer of PyTorch as rules of ours, with what it keeps.

_KEPT = {"momentum_buffer": "momentum", "exp_avg": "first_moment", "exp_avg_sq": "second_moment"}
"""Names here of the tensors that an optimizer keeps for a parameter."""
_REFUSED = ("maximize", "amsgrad", "differentiable")


def training_of(
    given: Training | UpdateRule | torch.optim.Optimizer, module: torch.nn.Module, found: Imported
) -> Training:
    """The rules by which the parameters of a step are trained.

    Raises:
        BadInputError: an optimizer that has no rule here, or that leaves a parameter of the step out.
    """
    if isinstance(given, Training):
        return given
    if not isinstance(given, torch.optim.Optimizer):
        return Training(given)
    names = {
        id(parameter): name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if name in found.parameters
    }
    rules = {
        names[id(parameter)]: _rule(given, group)
        for group in given.param_groups
        for parameter in group["params"]
        if id(parameter) in names
    }
    if left := sorted(set(found.parameters) - set(rules)):
        raise BadInputError(
            f"{type(given).__name__}: does not train {left[0]} ({len(left)} such parameters), but their gradients are "
            "asked for; give it all parameters, or call requires_grad_(False) on those"
        )
    ((common, _),) = Counter(rules.values()).most_common(1)
    return Training(common, {name: rule for name, rule in rules.items() if rule != common})


def rule_states_of(
    given: Training | UpdateRule | torch.optim.Optimizer, module: torch.nn.Module, found: Imported
) -> dict[str, npt.NDArray[Any]]:
    """What an optimizer of PyTorch keeps after the steps that it has taken, by the names that a step here has for it.

    Raises:
        BadInputError: it has taken more steps for one parameter than for another, which one counter cannot say.
    """
    if not isinstance(given, torch.optim.Optimizer):
        return {}
    states: dict[str, npt.NDArray[Any]] = {}
    steps: dict[int, str] = {}
    counts = any("betas" in group or group["dampening"] for group in given.param_groups)
    for name, parameter in module.named_parameters():
        if name not in (found.gradients or ()):
            continue
        kept = given.state.get(parameter, {})
        # SGD counts no steps. A step here only asks whether it is the first, whose gradient is not dampened.
        steps.setdefault(int(kept.get("step", kept.get("momentum_buffer") is not None)), name)
        for key, value in kept.items():
            if key in _KEPT and value is not None:
                array = value.detach().cpu().numpy()
                order = found.turned.get(name, tuple(range(array.ndim)))
                states[f"{name}.{_KEPT[key]}"] = np.ascontiguousarray(array.transpose(order))
    if counts and len(steps) > 1:
        (few, first), *_, (many, second) = sorted(steps.items())
        raise BadInputError(
            f"{type(given).__name__}: it has taken {few} steps for {first} and {many} for {second}; a step here counts "
            "one number for all: give an optimizer that is new, or one that has trained all parameters alike"
        )
    return states | {STEP: np.asarray(max(steps, default=0), np.int64)} if counts else states


def _rule(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> UpdateRule:
    kind = type(optimizer)
    for option in _REFUSED:
        if group.get(option):
            raise BadInputError(f"{kind.__name__}: {option}=True has no rule here; leave it out")
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    if kind is torch.optim.SGD:
        return Sgd(rate, float(group["momentum"]), float(group["dampening"]), decay, bool(group["nesterov"]))
    if kind is torch.optim.AdamW or (kind is torch.optim.Adam and group.get("decoupled_weight_decay")):
        return AdamW(rate, tuple(map(float, group["betas"])), float(group["eps"]), decay)  # type: ignore[arg-type]
    if kind is torch.optim.Adam:
        return Adam(rate, tuple(map(float, group["betas"])), float(group["eps"]), decay)  # type: ignore[arg-type]
    raise BadInputError(f"{kind.__name__} has no rule here; SGD, Adam and AdamW have")


# A PyTorch module as a network.

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
