"""What a program on a device is compared with: plain steps there, or, where they do not fit, kernel by kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from autotm.memory.gpu import Device, DeviceMemoryError
from autotm.model.files import AutotmError, hash_of
from autotm.model.machine import Machine
from autotm.model.measurement import KERNEL_BY_KERNEL, PLAIN_STEP
from autotm.model.step import Graph
from autotm.runtime.plain import plain_program
from autotm.runtime.streams.arguments import DeviceArguments, device_bytes
from autotm.runtime.streams.executor import Kernels, kernels_on, prepare_streams
from autotm.runtime.streams.kernel_by_kernel import KernelByKernel, largest_kernel
from autotm.runtime.verify import Reference, Values, check_finite, digests

log = logging.getLogger(__name__)

DeviceT = TypeVar("DeviceT", bound=Device)


class _Stepping(Protocol):
    def step(self) -> None: ...


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
    """Plain steps on a device, all their tensors in its memory; kernel by kernel where it has too little for that.

    Args:
        graph: as lowered, with the implementations that run.
        kernels: those of the graph on a device that was opened.
        machine: that has the device.
        seed: of the arguments.
        steps: how many.
        open_device: opens it with a device pool and a host pool of so many bytes.

    Raises:
        AutotmError: the device cannot be had, its work failed, or it has too little memory for one kernel.
        VerificationError: a result is not finite.
    """
    program = plain_program(graph)
    size_bytes = device_bytes(graph, graph, program)
    try:
        opened = open_device(size_bytes, 0)
    except DeviceMemoryError as error:
        log.info("the plain step is run kernel by kernel, its tensors in memory of the host: %s", error)
        return _by_kernel(graph, kernels, machine, seed, steps, open_device)
    with opened as device, kernels_on(device, machine):
        arguments = DeviceArguments.of(graph, graph, program, device)
        arguments.fill(seed)
        executor = prepare_streams(graph, kernels(device), program, arguments)
        return DeviceReference(_digested(graph, executor, arguments, machine, seed, steps), PLAIN_STEP)


def _by_kernel(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
    machine: Machine,
    seed: int,
    steps: int,
    open_device: Callable[[int, int], DeviceT],
) -> DeviceReference:
    largest, size_bytes = largest_kernel(graph)
    try:
        opened = open_device(size_bytes, 0)
    except DeviceMemoryError as error:
        raise too_large(largest.name, size_bytes, error) from None
    with opened as device, kernels_on(device, machine):
        one_by_one = KernelByKernel(graph, device, kernels(device))
        one_by_one.fill(seed)
        return DeviceReference(_digested(graph, one_by_one, one_by_one, machine, seed, steps), KERNEL_BY_KERNEL)


def too_large(kernel: str, size_bytes: int, error: DeviceMemoryError) -> AutotmError:
    """Why nothing can be compared on a device that lacks room for one kernel."""
    return AutotmError(
        f"verification: the operands of kernel '{kernel}' alone take {size_bytes} bytes of device memory: {error}; to "
        "run without a comparison set run.verify_steps: 0"
    )


def _digested(graph: Graph, stepping: _Stepping, values: Values, machine: Machine, seed: int, steps: int) -> Reference:
    found = []
    for number in range(1, steps + 1):
        stepping.step()
        check_finite(graph, values, number)
        found.append(digests(graph, values, machine.cpus))
    return Reference(hash_of(graph), "", machine.threads, seed, tuple(found))
