"""The plain step on a device, whole or kernel by kernel, which programs are compared with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.interface import Device, DeviceMemoryError, Span
from autotm.memory.pool import POISON_BYTE
from autotm.model.errors import AutotmError
from autotm.model.files import hash_of
from autotm.model.graph import ALIGNMENT_BYTES, Graph, Kernel, Role
from autotm.model.limit import storage_of
from autotm.model.machine import Machine
from autotm.model.record import KERNEL_BY_KERNEL, PLAIN_STEP
from autotm.runtime.arguments import initial_value
from autotm.runtime.streams.executor import Kernels, prepare_streams
from autotm.runtime.streams.schedule import DeviceArguments, device_bytes
from autotm.runtime.verify import Reference, Values, check_finite, digests, plain_program

# The step without a plan where a device has too little memory for it: every tensor is in ordinary memory of the host.
#
# One kernel at a time has its operands in device memory, and nothing else is there: they are copied in, it runs, what
# it wrote is copied out. No memory is used for two tensors, and nothing is moved ahead or beside a kernel, so that
# none of what makes a planned program wrong can make this one wrong too.

Array = npt.NDArray[Any]
Places = Mapping[str, int]
"""First byte in the device's pool, by the name of the tensor whose memory it is."""


def largest_kernel(graph: Graph) -> tuple[Kernel, int]:
    """The kernel with most bytes of operands, and the device memory that they take."""
    sizes = ((kernel, _places(graph, kernel)[1]) for kernel in graph.kernels)
    return max(sizes, key=lambda one: one[1])


@dataclass(frozen=True)
class KernelByKernel:
    """Steps of a graph, kernel by kernel.

    Attributes:
        graph: as lowered, with the implementations that run.
        device: whose pool has room for the operands of any one kernel.
        library: the kernels, on that device.
        values: what is in memory of the host, by the name of the tensor whose memory it is.
    """

    graph: Graph
    device: Device
    library: Kernels
    values: dict[str, Array] = field(default_factory=dict, repr=False)

    def fill(self, seed: int) -> None:
        """Make every argument what it is before the first step; results become zero."""
        for tensor in self.graph.tensors:
            if not tensor.role.is_movable and tensor.alias_of is None:
                is_result = tensor.role is Role.RESULT
                value = np.zeros(tensor.shape, tensor.dtype) if is_result else initial_value(tensor, seed)
                self.values[tensor.name] = np.ascontiguousarray(value)

    def value(self, name: str) -> Array:
        """An argument as it is now."""
        tensor = self.graph.by_name[name]
        return self.values[storage_of(self.graph, name)].reshape(-1).view(tensor.dtype).reshape(tensor.shape)

    def step(self) -> None:
        """Run one training step to its end.

        Raises:
            AutotmError: some of the device's work failed.
        """
        for index, kernel in enumerate(self.graph.kernels):
            self._run(kernel)
            for operand in kernel.operands:
                tensor = self.graph.by_name[operand.tensor]
                if tensor.role.is_movable and tensor.live.stop == index + 1:
                    self.values.pop(tensor.name, None)

    def _run(self, kernel: Kernel) -> None:
        places, size_bytes = _places(self.graph, kernel)
        pool = self.device.device_pool
        # What is not copied in must not be what an earlier kernel left there.
        self.device.compute.fill(Span(pool, 0, size_bytes), POISON_BYTE)
        self.device.synchronize()
        for name, start in places.items():
            if name in self.values:
                self.device.write(Span(pool, start, self.values[name].nbytes), self.values[name])
        names = [storage_of(self.graph, operand.tensor) for operand in kernel.operands]
        views = [
            pool.view(places[name], operand.shape, operand.dtype)
            for name, operand in zip(names, kernel.operands, strict=True)
        ]
        spans = [
            Span(pool, places[name], operand.size_bytes) for name, operand in zip(names, kernel.operands, strict=True)
        ]
        inputs = len(kernel.inputs)
        self.device.compute.launch(self.library.bind(kernel.function, views), spans[:inputs], spans[inputs:])
        self.device.synchronize()
        for operand in kernel.outputs:
            tensor = self.graph.by_name[storage_of(self.graph, operand.tensor)]
            self.values[tensor.name] = self.device.read(Span(pool, places[tensor.name], tensor.size_bytes))


def _places(graph: Graph, kernel: Kernel) -> tuple[Places, int]:
    """Where the operands of a kernel are while it runs, one behind the other, and the bytes that all take."""
    places: dict[str, int] = {}
    end = 0
    for operand in kernel.operands:
        name = storage_of(graph, operand.tensor)
        if name not in places:
            places[name] = end
            size_bytes = max(operand.size_bytes, graph.by_name[name].size_bytes, 1)
            end += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return places, end


# The step without a plan on a device: all tensors in device memory, or, where they do not fit, kernel by kernel.

log = logging.getLogger(__name__)

DeviceT = TypeVar("DeviceT", bound=Device)


class _Stepping(Protocol):
    def step(self) -> None: ...


def plain_steps(
    graph: Graph,
    kernels: Callable[[DeviceT], Kernels],
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
        with opened as device:
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
        with small as device:
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


# What a program on a device is compared with.


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
    how, after = plain_steps(graph, kernels, seed, steps, open_device)
    found = tuple(digests(graph, values, machine.cpus) for values in after)
    return DeviceReference(Reference(hash_of(graph), "", machine.threads, seed, found), how)
