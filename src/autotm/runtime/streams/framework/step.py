"""A training step of PyTorch whose saved tensors wait for the backward pass in pinned host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch

from autotm.memory.torch import Device
from autotm.zoo import Network
from autotm.zoo.twin import TorchNetwork, has_sparse_gradients, optimizer_of

Arrays = Mapping[str, npt.NDArray[Any]]


class SavedStep:
    """One network's step under `torch.autograd.graph.save_on_cpu`, with the batch, loss and update rules of ours.

    Attributes:
        device_s: of each step that `step` ran, from an event before to one after.
    """

    def __init__(self, network: Network, arrays: Arrays, device: Device) -> None:
        """Put parameters and inputs on the device, in float32.

        Raises:
            BadInputError: the network has no counterpart in PyTorch.
        """
        sparse = has_sparse_gradients(network)
        self._module = TorchNetwork(network, arrays, torch.float32, sparse=sparse, device=device.torch)
        self._optimizer = optimizer_of(network, self._module)
        self._clip_norm = network.training.clip_norm if network.training else None
        self._device = device
        self._loss = torch.zeros(())
        self.device_s: list[float] = []

    def step(self) -> None:
        """Run one to its end; gradients do not outlive it."""
        self.device_s.append(self._device.seconds(self.train, 1))

    def train(self) -> None:
        """Ask for one."""
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = self._module()
        loss.backward()
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._module.parameters(), self._clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._loss = loss.detach()

    @property
    def loss(self) -> float:
        """Of the last step."""
        return float(self._loss)
