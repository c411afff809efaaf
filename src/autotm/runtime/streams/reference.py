"""What a program on a device is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autotm.memory.gpu import Device
from autotm.model.files import hash_of
from autotm.model.machine import Machine
from autotm.model.step import Graph
from autotm.runtime.streams.executor import Kernels
from autotm.runtime.streams.plain import plain_steps
from autotm.runtime.verify import Reference, digests

DeviceT = TypeVar("DeviceT", bound=Device)


@dataclass(frozen=True)
class DeviceReference:
    """Digests of steps on a device.

    Attributes:
        reference: the digests.
        how: `plain step` or `kernel by kernel`.
    """

    reference: Reference
    how: str


def device_reference(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
    machine: Machine,
    seed: int,
    steps: int,
    open_device: Callable[[int, int], DeviceT],
) -> DeviceReference:
    """Digests after each of so many plain steps on a device: the arguments are those of `plain_steps`.

    Raises:
        AutotmError, VerificationError: as `plain_steps`.
    """
    how, after = plain_steps(graph, kernels, machine, seed, steps, open_device)
    found = tuple(digests(graph, values, machine.cpus) for values in after)
    return DeviceReference(Reference(hash_of(graph), "", machine.threads, seed, found), how)
