"""The step without a plan on a device: all tensors in device memory, or, where they do not fit, kernel by kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from autotm.memory.gpu import Device, DeviceMemoryError
from autotm.model.files import AutotmError
from autotm.model.machine import Machine
from autotm.model.measurement import KERNEL_BY_KERNEL, PLAIN_STEP
from autotm.model.step import Graph
from autotm.runtime.plain import plain_program
from autotm.runtime.streams.arguments import DeviceArguments, device_bytes
from autotm.runtime.streams.executor import Kernels, kernels_on, prepare_streams
from autotm.runtime.streams.kernel_by_kernel import KernelByKernel, largest_kernel
from autotm.runtime.verify import Values, check_finite

log = logging.getLogger(__name__)

DeviceT = TypeVar("DeviceT", bound=Device)


class _Stepping(Protocol):
    def step(self) -> None: ...


def plain_steps(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
    machine: Machine,
    seed: int,
    count: int,
    open_device: Callable[[int, int], DeviceT],
) -> tuple[str, Iterator[Values]]:
    """How the plain step runs on a device, and its arguments after each of `count` steps.

    Kernel by kernel, all tensors are in memory of the host, and each kernel's operands are copied to the device and
    back. The device is closed after the last step.

    Args:
        graph: as lowered, with the implementations that run.
        kernels: those of the graph on a device that was opened.
        machine: that has the device.
        seed: of what the arguments hold before the first step.
        count: of steps.
        open_device: opens it with a device pool and a host pool of so many bytes.

    Returns:
        `plain step` or `kernel by kernel`, and the values, which have to be read before the next step.

    Raises:
        AutotmError: the device cannot be had, its work failed, or it has too little memory for one kernel.
        VerificationError: a result is not finite.
    """
    program = plain_program(graph)

    def whole() -> Iterator[Values]:
        with opened as device, kernels_on(device, machine):
            arguments = DeviceArguments.of(graph, graph, program, device)
            arguments.fill(seed)
            executor = prepare_streams(graph, kernels(device), program, arguments)
            yield from _steps(graph, executor, arguments, count)

    def by_kernel() -> Iterator[Values]:
        largest, size_bytes = largest_kernel(graph)
        try:
            small = open_device(size_bytes, 0)
        except DeviceMemoryError as error:
            raise too_large(largest.name, size_bytes, error) from None
        with small as device, kernels_on(device, machine):
            one_by_one = KernelByKernel(graph, device, kernels(device))
            one_by_one.fill(seed)
            yield from _steps(graph, one_by_one, one_by_one, count)

    try:
        opened = open_device(device_bytes(graph, graph, program), 0)
    except DeviceMemoryError as error:
        log.info("the plain step is run kernel by kernel, its tensors in memory of the host: %s", error)
        return KERNEL_BY_KERNEL, by_kernel()
    return PLAIN_STEP, whole()


def too_large(kernel: str, size_bytes: int, error: DeviceMemoryError) -> AutotmError:
    """Why nothing can be compared on a device that lacks room for one kernel."""
    return AutotmError(
        f"verification: the operands of kernel '{kernel}' alone take {size_bytes} bytes of device memory: {error}; to "
        "run without a comparison set run.verify_steps: 0"
    )


def _steps(graph: Graph, stepping: _Stepping, values: Values, count: int) -> Iterator[Values]:
    for number in range(1, count + 1):
        stepping.step()
        check_finite(graph, values, number)
        yield values
