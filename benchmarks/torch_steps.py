"""One training step by PyTorch, in float64 and float32, and how far another one is from it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from imported_models import Given

Array = npt.NDArray[Any]
RATE = 0.1


@dataclass(frozen=True)
class Stepped:
    """What a step computed: its loss, and every tensor of the module's state after it, in float64."""

    loss: float
    state: Mapping[str, Array]


def torch_step(given: Given, dtype: torch.dtype, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> Stepped:
    """A step of plain descent by PyTorch in that precision, on a copy of the module."""
    module = copy.deepcopy(given.module).to(dtype).train()
    trained = optimizer(module.parameters(), lr=RATE)
    if isinstance(given.inputs, Mapping):
        output = module(**{name: _in(value, dtype) for name, value in given.inputs.items()})
    else:
        output = module(*(_in(value, dtype) for value in given.inputs))
    loss = given.loss(output, *(_in(value, dtype) for value in given.targets))
    loss.backward()
    trained.step()
    return Stepped(loss.item(), state_of(module))


def state_of(module: torch.nn.Module) -> dict[str, Array]:
    """A module's state in float64; each tensor once, under its first name."""
    found, seen = {}, set()
    for name, value in module.state_dict(keep_vars=True).items():
        if value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            found[name] = value.detach().double().numpy().copy()
    return found


def change_error(before: Mapping[str, Array], found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """|found - wanted| over |wanted - before|, over all tensors together: the error of what a step changes."""
    apart = sum(float(np.sum((found[name] - wanted[name]) ** 2)) for name in wanted)
    moved = sum(float(np.sum((wanted[name] - before[name]) ** 2)) for name in wanted)
    return float(np.sqrt(apart / moved))


def _in(value: Any, dtype: torch.dtype) -> Any:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_real else value
