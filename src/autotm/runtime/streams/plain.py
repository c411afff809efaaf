"""The step without a plan on a device: what programs are compared with, and a framework's own step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from autotm.memory.gpu import Device
from autotm.model.machine import Machine
from autotm.model.step import Graph
from autotm.runtime.plain import plain_program
from autotm.runtime.streams.arguments import DeviceArguments, device_bytes
from autotm.runtime.streams.executor import Kernels, kernels_on, prepare_streams
from autotm.runtime.verify import check_finite

DeviceT = TypeVar("DeviceT", bound=Device)


def plain_steps(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
    machine: Machine,
    seed: int,
    count: int,
    open_device: Callable[[int, int], DeviceT],
) -> Iterator[DeviceArguments]:
    """The arguments after each of `count` plain steps; the device is closed after the last.

    Args:
        graph: the step with the implementations that run.
        kernels: those of the graph on a device that was opened.
        machine: that has the device.
        seed: of what the arguments hold before the first step.
        count: of steps.
        open_device: opens it with a device pool and a host pool of so many bytes.

    Raises:
        AutotmError: the device cannot be had, or its work failed.
        VerificationError: a result is not finite.
    """
    program = plain_program(graph)
    with open_device(device_bytes(graph, graph, program), 0) as device, kernels_on(device, machine):
        arguments = DeviceArguments.of(graph, graph, program, device)
        arguments.fill(seed)
        executor = prepare_streams(graph, kernels(device), program, arguments)
        for number in range(1, count + 1):
            executor.step()
            check_finite(graph, arguments, number)
            yield arguments
