"""An optimizer of PyTorch as rules of ours, with what it keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autotm.model.files import BadInputError
from autotm.model.step import STEP, Adam, AdamW, Sgd, Training, UpdateRule
from autotm.zoo.frontend.imported import Imported

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
