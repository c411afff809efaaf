"""A PyTorch module as a network, and its optimizer as update rules of ours, with the optimizer's state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from autotm.capture import Captured
from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Initial
from autotm.model.training import STEP, Adam, AdamW, Sgd, Training, UpdateRule
from autotm.zoo.imported import Imported, channels_last
from autotm.zoo.layouts import CONSTANT
from autotm.zoo.network import Network, Origin
from autotm.zoo.torch.framework import restored
from autotm.zoo.torch.importer import Kernels, imported_step
from autotm.zoo.torch.loops import StepTranslation
from autotm.zoo.torch.program import Inputs, Loss, Mode, captured_step
from autotm.zoo.torch.random_numbers import COUNTER
from autotm.zoo.torch.recurrent import REPLACED, scans_have_gradients
from autotm.zoo.torch.reference import TorchReference

_KEPT = {"momentum_buffer": "momentum", "exp_avg": "first_moment", "exp_avg_sq": "second_moment"}
"""Names here of the tensors that an optimizer keeps for a parameter."""
_REFUSED = ("maximize", "amsgrad", "differentiable")


def training_of(
    training: Training | UpdateRule | torch.optim.Optimizer, module: torch.nn.Module, imported: Imported
) -> Training:
    """Return the rules by which the parameters of a step are trained.

    Raises:
        BadInputError: an optimizer that has no rule here, or that leaves a parameter of the step out.
    """
    if isinstance(training, Training):
        return training
    if not isinstance(training, torch.optim.Optimizer):
        return Training(training)
    names = {
        id(parameter): name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if name in imported.parameters
    }
    rules = {
        names[id(parameter)]: _rule(training, group)
        for group in training.param_groups
        for parameter in group["params"]
        if id(parameter) in names
    }
    if left := sorted(set(imported.parameters) - set(rules)):
        raise BadInputError(
            f"{type(training).__name__}: does not train {left[0]} ({len(left)} such parameters), but their gradients "
            "are asked for; give it all parameters, or call requires_grad_(False) on those"
        )
    ((common, _),) = Counter(rules.values()).most_common(1)
    return Training(common, {name: rule for name, rule in rules.items() if rule != common})


def rule_states_of(
    training: Training | UpdateRule | torch.optim.Optimizer, module: torch.nn.Module, imported: Imported
) -> dict[str, npt.NDArray[Any]]:
    """Return the state that an optimizer of PyTorch has after its steps so far, by the names of a step's states.

    Raises:
        BadInputError: the optimizer has taken more steps for one parameter than for another; a step has one counter.
    """
    if not isinstance(training, torch.optim.Optimizer):
        return {}
    states: dict[str, npt.NDArray[Any]] = {}
    steps: dict[int, str] = {}
    counts = any("betas" in group or group["dampening"] for group in training.param_groups)
    for name, parameter in module.named_parameters():
        if name not in (imported.gradients or ()):
            continue
        kept = training.state.get(parameter, {})
        # SGD counts no steps. A step here only asks whether it is the first, whose gradient is not dampened.
        steps.setdefault(int(kept.get("step", kept.get("momentum_buffer") is not None)), name)
        for key, value in kept.items():
            if key in _KEPT and value is not None:
                array = value.detach().cpu().numpy()
                order = imported.turned.get(name, tuple(range(array.ndim)))
                states[f"{name}.{_KEPT[key]}"] = np.ascontiguousarray(array.transpose(order))
    if counts and len(steps) > 1:
        (few, first), *_, (many, second) = sorted(steps.items())
        raise BadInputError(
            f"{type(training).__name__}: it has taken {few} steps for {first} and {many} for {second}; a step here "
            "counts one number for all: give an optimizer that is new, or one that has trained all parameters alike"
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
    if kind in {torch.optim.Adam, torch.optim.AdamW}:
        is_apart = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
        betas = tuple(map(float, group["betas"]))
        return (AdamW if is_apart else Adam)(rate, betas, float(group["eps"]), decay)  # type: ignore[arg-type]
    raise BadInputError(f"{kind.__name__} has no rule here; SGD, Adam and AdamW have")


_COUNTS = 2**30
"""The first value of the counter of random numbers is drawn below this, so that many steps can be counted."""
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
    """Return the step that trains a module, or infers with it, at the shapes of the inputs.

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
        kind = type(module).__name__
        raise BadInputError(f"a {kind} is no torch.nn.Module; give the module itself, not what it returns")
    if kernels not in get_args(Kernels):
        raise unknown_name("value of kernels", kernels, get_args(Kernels))
    trains = mode == "train"
    captured, names = _captured(module, inputs, targets, loss, mode, kernels)
    import_step = partial(imported_step, trains=trains, kernels=kernels, translation_type=StepTranslation)
    imported = import_step(captured)
    imported.check({name: value for name, value in imported.inputs.items() if np.issubdtype(value.dtype, np.integer)})
    reference = TorchReference(
        captured,
        imported,
        lambda detailed: channels_last(import_step(detailed)),
        None if imported.places else captured.eager,
    )
    imported = channels_last(imported)
    rules = training_of(training or _DEFAULT, module, imported) if trains else None
    kept = rule_states_of(training or _DEFAULT, module, imported) if trains else {}
    examples = [node.meta["val"] for node in captured.outputs]

    def outputs(several: Sequence[torch.Tensor]) -> Any:
        return captured.nested([restored(value, one) for value, one in zip(several, examples, strict=True)])

    data = (value for name, value in imported.inputs.items() if not name.startswith(CONSTANT))
    batches = [value.shape[0] for value in data if value.shape]
    counter = {COUNTER: Initial("integers", _COUNTS)}
    states = {name: counter.get(name, value) for name, value in imported.states.items()}
    origin = replace(_origin(module, names, imported), outputs=outputs, reference=reference)
    return Network(
        name or re.sub(r"[^a-z0-9_]", "_", type(module).__name__.lower()), batches[0] if batches else 1,
        imported.module,
        imported.inputs, imported.parameters, rules, states, origin, imported.gradients, kept,
    )  # fmt: skip


def _captured(
    module: torch.nn.Module, inputs: Inputs, targets: Sequence[Any], loss: Loss | None, mode: Mode, kernels: Kernels
) -> tuple[Captured, Sequence[str]]:
    """Capture a step, as `captured_step`: recurrent layers and other loops as operators on functions, not unrolled.

    PyTorch's own kernels compute recurrent layers whole, where these are all that there are to be.
    """

    def capture(*, loops: bool) -> tuple[Captured, Sequence[str]]:
        with scans_have_gradients() if loops else nullcontext():
            return captured_step(
                module, inputs, targets, loss, mode, decomposed=kernels != "torch", replaced=REPLACED if loops else None
            )

    loops = kernels != "torch" and any(isinstance(part, torch.nn.RNNBase) for part in module.modules())
    try:
        return capture(loops=loops)
    except BadInputError:
        if loops or kernels == "torch":
            raise
        # Its forward pass may have loops that PyTorch traces only where shapes may depend on values.
        with suppress(BadInputError):
            return capture(loops=True)
        raise


def _origin(module: torch.nn.Module, names: Sequence[str], imported: Imported) -> Origin:
    """Return how the tensors of a step correspond to the module's own state."""
    state = module.state_dict(keep_vars=True)
    tensors = tuple(name for name in (*imported.parameters, *imported.states) if name in state)
    by_tensor = {id(state[name]): name for name in tensors}
    same = {name: by_tensor[id(item)] for name, item in state.items() if name not in tensors and id(item) in by_tensor}
    kept = {name: item for name, item in state.items() if name not in tensors and name not in same}
    return Origin(
        tuple(names),
        imported.turned,
        tensors,
        same,
        {name: item.detach().cpu().numpy().copy() for name, item in kept.items()},
        {name: added for name, added in imported.counters.items() if name in kept},
        is_torch=True,
        lines=imported.lines,
        check=imported.check,
    )
