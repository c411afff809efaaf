"""Modules of PyTorch and their inputs, and one plain step of a module here against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plain_steps
import torch

from autotm.model.training import Sgd, Training
from autotm.zoo import from_torch
from autotm.zoo.network import Network
from autotm.zoo.torch.importer import Kernels
from imported_models import TrainingCase
from torch_steps import RATE, change_error, state_of, torch_step

ALLOWED = 3.0
"""Times PyTorch's own float32 error."""
FLOOR = 1e-6
"""Relative errors below this are roundings of the weights, whoever makes them."""


class Made(torch.nn.Module):
    """A module of some parts whose forward pass is a function of them and the inputs."""

    def __init__(self, forward: Callable[..., object], **parts: torch.nn.Module | torch.nn.Parameter) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> object:
        return self._forward(self, *inputs)


def images(*shape: int) -> tuple[torch.Tensor, ...]:
    """Normal numbers, always the same: what `torch.randn` draws depends on the processor's vectors."""
    return (torch.from_numpy(np.random.default_rng(1).standard_normal(shape, dtype=np.float32)),)


def words(high: int, *shape: int) -> tuple[torch.Tensor, ...]:
    return (torch.from_numpy(np.random.default_rng(1).integers(0, high, shape)),)


@dataclass(frozen=True)
class Compared:
    """A step here and there.

    Attributes:
        network: as imported.
        loss: here, and in float64.
        error: of what the step changes, here, and by PyTorch in float32.
        state: of the module after the step here, by its own names.
    """

    network: Network
    loss: tuple[float, float]
    error: tuple[float, float]
    state: dict[str, np.ndarray]

    def is_exact(self) -> bool:
        """Whether loss and state are as close as PyTorch's float32, or as roundings are."""
        loss, exact = self.loss
        ours, theirs = self.error
        return abs(loss - exact) <= 1e-5 * max(abs(exact), 0.1) and ours <= max(ALLOWED * theirs, FLOOR)


def squares(output: Any) -> torch.Tensor:
    """A loss for any output: its mean square, and something that tells signs apart."""
    parts = output if isinstance(output, tuple | list) else [output]
    return sum((part * part).mean() + 0.3 * part.sin().mean() for part in parts)


def compare(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...] | Mapping[str, Any],
    folder: Path,
    targets: tuple[torch.Tensor, ...] = (),
    loss: Callable[..., torch.Tensor] = squares,
    kernels: Kernels = "auto",
) -> Compared:
    """One step of plain gradient descent by autotm and by PyTorch in float64 and float32."""
    case = TrainingCase(module, inputs, targets, loss)
    before = state_of(module)
    network = from_torch(module, inputs, loss=loss, targets=targets, training=Training(Sgd(RATE)), kernels=kernels)
    after = plain_steps.compiled(network, folder).run(1).after[0]
    exact, single = (torch_step(case, dtype) for dtype in (torch.float64, torch.float32))
    assert network.origin is not None
    fills = {**network.parameters, **network.states}
    changed = {name: after[f"{name}.new"] for name in fills if f"{name}.new" in after}
    start = {name: fill for name, fill in fills.items() if isinstance(fill, np.ndarray)}
    state = network.origin.state({**start, **changed}, 1)
    ours = {name: state[name] for name in exact.state}
    errors = change_error(before, ours, exact.state), change_error(before, single.state, exact.state)
    return Compared(network, (float(after["loss"]), exact.loss), errors, state)
