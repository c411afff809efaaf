"""The devices that there are, and which of them a module is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from autotm.memory.torch.copies import Copies
from autotm.memory.torch.cpu import Cpu
from autotm.memory.torch.cuda import Cuda
from autotm.model.files import BadInputError


class Device(Protocol):
    """A device of PyTorch.

    Attributes:
        name: for records.
        torch: PyTorch's.
        granularity_bytes: what its allocator rounds up to.
    """

    name: str
    torch: torch.device
    granularity_bytes: int

    def copies(self) -> Copies:
        """New streams of copies."""

    def host_pool(self, size_bytes: int) -> torch.Tensor:
        """Bytes of host memory, pinned where that makes a difference.

        Raises:
            AutotmError: the system does not give them.
        """

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """How long that many calls take, one after another."""

    def peak(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """What a call gives, and by how many bytes its allocations exceeded at most what was there before."""


def device_of(device: torch.device) -> Device:
    """The device that a module is on.

    Raises:
        BadInputError: PyTorch runs there, but nothing here copies for it.
    """
    if device.type == "cpu":
        return Cpu()
    if device.type == "cuda":
        return Cuda(device)
    raise BadInputError(f"offload: the module is on '{device}'; give one on cuda, or on cpu to try it out")
