"""Steps on a device: by a schedule, every call bound before the first, or kernel by kernel; opened with its kernels."""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotm.kernels.library import FatbinLibrary, Launches
from autotm.memory.gpu.cuda_device import CudaDevice, CudaEvent, CudaStream
from autotm.memory.gpu.cuda_memory import DeviceMemoryError, Span
from autotm.memory.gpu.opening import open_device
from autotm.memory.pool import POISON_BYTE
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Graph, Kernel, Launch
from autotm.model.limit import storage_of
from autotm.model.machine import Machine
from autotm.model.program import Program
from autotm.model.record import KERNEL_BY_KERNEL, PLAIN_STEP
from autotm.model.timeline import Lane, TimedOperation, Timeline
from autotm.runtime.arguments import Array, initial_value, own_arguments, spread
from autotm.runtime.executor import Call
from autotm.runtime.streams.schedule import (
    DeviceArguments,
    Operation,
    Schedule,
    aligned,
    device_bytes,
    operations,
    schedule,
    span_of,
)
from autotm.runtime.verify import plain_program

log = logging.getLogger(__name__)


_REMEDIES = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernels are built for other GPUs: compile them again for this one's sm",
    "CUDA_ERROR_INVALID_IMAGE": "the file of kernels is damaged: make it again",
    "CUDA_ERROR_NOT_FOUND": "the kernels belong to another graph: make both again",
}


class LaunchedKernels:
    """The kernels of a fatbin as launches on a device's compute stream: neither TVM nor a compiler is needed.

    The driver loads the code into the device's context; it goes with that, when the process ends.

    Raises:
        AutotmError: the driver refuses the code: it has none for this GPU, or is no fatbin.
    """

    def __init__(self, device: CudaDevice, image: bytes, launches: Launches) -> None:
        self._device, self._launches = device, launches
        self._driver = importlib.import_module("cuda.bindings.driver")
        self._library = self._called("cuLibraryLoadData", image, [], [], 0, [], [], 0)

    def bind(self, symbol: str, views: Sequence[int]) -> Call:
        """Return the kernel on operands at addresses, inputs, outputs, then workspaces, as a call that launches it.

        Raises:
            BadInputError: there is no such kernel.
            AutotmError: the code lacks a function of it.
        """
        if symbol not in self._launches:
            raise BadInputError(f"no launches of kernel '{symbol}': they belong to another graph; make both again")
        calls = [
            self._launch(launch, [views[place] for place in launch.arguments]) for launch in self._launches[symbol]
        ]

        def call() -> None:
            for each in calls:
                each()

        return calls[0] if len(calls) == 1 else call

    def _launch(self, launch: Launch, addresses: Sequence[int]) -> Call:
        kernel = self._called("cuLibraryGetKernel", self._library, launch.function.encode())
        parameters = tuple(addresses), (ctypes.c_void_p,) * len(addresses)
        return functools.partial(
            self._called, "cuLaunchKernel", self._driver.CUfunction(int(kernel)), *launch.grid, *launch.block, 0,
            self._device.compute.handle, parameters, 0,
        )  # fmt: skip

    def _called(self, function: str, *arguments: Any) -> Any:
        error, *values = getattr(self._driver, function)(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            name = str(getattr(error, "name", error))
            raise AutotmError(f"CUDA: {function}: {name}" + (f": {_REMEDIES[name]}" if name in _REMEDIES else ""))
        return values[0] if values else None


OpenDevice = Callable[..., AbstractContextManager[tuple[CudaDevice, LaunchedKernels]]]
"""`open_machines_gpu` for a machine and the kernels of a graph; called with the bytes of both pools."""


@contextmanager
def open_machines_gpu(
    machine: Machine, library: FatbinLibrary, device_bytes: int, host_bytes: int, *, allowed_bytes: int | None = None
) -> Iterator[tuple[CudaDevice, LaunchedKernels]]:
    """Open the GPU that a machine file names, with kernels and pools in device and host memory, until the context ends.

    Where `allowed_bytes` are given, its driver manages the first pool: that many of its bytes are in device memory at a
    time.

    Raises:
        DeviceMemoryError: the device has less.
        AutotmError: the device cannot be had.
    """
    architectures = library.architectures
    with open_device(machine, device_bytes, host_bytes, built_for=architectures, allowed_bytes=allowed_bytes) as device:
        kernels = LaunchedKernels(device, library.image, library.launches)
        device.device_pool.hold_the_rest()  # Not before: the kernels take device memory, too.
        yield device, kernels


@dataclass(frozen=True)
class StreamExecutor:
    """One training step on a device's streams.

    Attributes:
        program: that it runs.
        arguments: where those are that it does not place.
        order: its operations, and which wait for which.
        queued: for each operation, what hands it to its stream.
        marks: for each operation that others wait for, its event.
    """

    program: Program
    arguments: DeviceArguments
    order: Schedule
    queued: tuple[Call, ...]
    marks: Mapping[int, CudaEvent] = field(repr=False)

    @property
    def device(self) -> CudaDevice:
        """The device that it runs on."""
        return self.arguments.device

    def queue(self) -> None:
        """Hand one step to the streams and return; steps follow each other."""
        for call in self._calls:
            call()

    def step(self) -> None:
        """Run one training step to its end: parameters are updated in place, results overwritten.

        Raises:
            AutotmError: some of its work failed.
        """
        self.queue()
        self.device.synchronize()

    def timeline(self) -> Timeline:
        """Run one training step with an event before and after each operation.

        Raises:
            AutotmError: some of its work failed.
        """
        pairs = [(self.device.event(timed=True), self.device.event(timed=True)) for _ in self.order.operations]
        for index, (operation, (begin, end)) in enumerate(zip(self.order.operations, pairs, strict=True)):
            stream = stream_of(self.device, operation.lane)
            for other in self.order.waits[index]:
                stream.wait(self.marks[other])
            stream.record(begin)
            self.queued[index]()
            stream.record(end)
            if index in self.marks:
                stream.record(self.marks[index])
        self.device.synchronize()
        elapsed = functools.partial(self.device.elapsed_ns, pairs[0][0])
        timed = tuple(
            TimedOperation(one.lane, one.name, one.copied_bytes, elapsed(begin), elapsed(end))
            for one, (begin, end) in zip(self.order.operations, pairs, strict=True)
            if one.reads or one.writes
        )
        return Timeline(self.device.name, timed, elapsed(pairs[-1][1]))

    @functools.cached_property
    def _calls(self) -> tuple[Call, ...]:
        calls: list[Call] = []
        for index, operation in enumerate(self.order.operations):
            stream = stream_of(self.device, operation.lane)
            calls += [functools.partial(stream.wait, self.marks[other]) for other in self.order.waits[index]]
            calls.append(self.queued[index])
            if index in self.marks:
                calls.append(functools.partial(stream.record, self.marks[index]))
        return tuple(calls)


def prepare_streams(
    graph: Graph, library: LaunchedKernels, program: Program, arguments: DeviceArguments, *, poison: bool = False
) -> StreamExecutor:
    """Bind every operation of `program` to the device of its arguments.

    Args:
        graph: the step with what the limit counts and the implementations that the program runs.
        library: its kernels, compiled for the device.
        program: of that graph.
        arguments: where those are that it does not place.
        poison: overwrite memory as soon as its tensor is dead.

    Raises:
        AutotmError: an address leaves its pool or is not aligned.
        BadInputError: the library lacks a kernel, or a kernel has an operand in slow memory.
    """
    device = arguments.device
    order = schedule(operations(graph, program, arguments, poison=poison))
    queued = tuple(_queued(graph, library, device, operation) for operation in order.operations)
    return StreamExecutor(program, arguments, order, queued, {index: device.event() for index in order.awaited})


def stream_of(device: CudaDevice, lane: Lane) -> CudaStream:
    """Return the stream of a lane."""
    return {Lane.COMPUTE: device.compute, Lane.INWARD: device.inward, Lane.OUTWARD: device.outward}[lane]


def _queued(graph: Graph, library: LaunchedKernels, device: CudaDevice, operation: Operation) -> Call:
    stream = stream_of(device, operation.lane)
    reads, writes = (
        [span_of(device, used.tier, used.start, used.size_bytes) for used in some]
        for some in (operation.reads, operation.writes)
    )
    if operation.kernel is not None:
        kernel = graph.kernels[operation.kernel]
        views = [
            span.memory.view(span.start, operand.shape, operand.dtype)
            for operand, span in zip(kernel.operands, (*reads, *writes), strict=True)
        ]
        return functools.partial(stream.launch, library.bind(kernel.function, views), reads, writes)
    if operation.is_poison:
        return functools.partial(stream.fill, writes[0], POISON_BYTE)
    if writes:
        return functools.partial(stream.copy, writes[0], reads[0])
    return lambda: None  # the start and the end of a step are events only


# The step without a plan where a device has too little memory for it: every tensor is in ordinary memory of the host.
#
# One kernel at a time has its operands in device memory, and nothing else is there: they are copied in, it runs, what
# it wrote is copied out. No memory is used for two tensors, and nothing is moved ahead of a kernel or during one, so
# that none of what makes a planned program wrong can make this one wrong too.


def largest_kernel(graph: Graph) -> tuple[Kernel, int]:
    """Return the kernel with most bytes of operands, and the device memory that they take."""
    sizes = ((kernel, _places(graph, kernel)[1]) for kernel in graph.kernels)
    return max(sizes, key=lambda one: one[1])


@dataclass(frozen=True)
class HostValues:
    """Tensors in ordinary memory of the host.

    Attributes:
        graph: as lowered, with the implementations that run.
        arrays: by the name of the tensor whose memory it is.
    """

    graph: Graph
    arrays: dict[str, Array] = field(default_factory=dict, repr=False)

    def fill(self, seed: int, cpus: Sequence[int] = ()) -> None:
        """Make every argument what it is before the first step; results become zero."""
        tensors = own_arguments(self.graph)
        values = spread(lambda tensor: np.ascontiguousarray(initial_value(tensor, seed)), tensors, cpus)
        self.arrays.update((tensor.name, value) for tensor, value in zip(tensors, values, strict=True))

    def value(self, name: str) -> Array:
        """Return an argument as it is now."""
        tensor = self.graph.by_name[name]
        return self.arrays[storage_of(self.graph, name)].reshape(-1).view(tensor.dtype).reshape(tensor.shape)


@dataclass(frozen=True)
class KernelByKernel:
    """Steps of a graph, kernel by kernel.

    Attributes:
        program: that it stands for.
        arguments: what is in memory of the host, intermediate tensors too.
        device: whose pool has room for the operands of any one kernel.
        library: the kernels, on that device.
    """

    program: Program
    arguments: HostValues
    device: CudaDevice
    library: LaunchedKernels

    def step(self) -> None:
        """Run one training step to its end.

        Raises:
            AutotmError: some of the device's work failed.
        """
        graph = self.arguments.graph
        for index, kernel in enumerate(graph.kernels):
            self._run(graph, kernel)
            for operand in kernel.operands:
                tensor = graph.by_name[operand.tensor]
                if tensor.role.is_movable and tensor.live.stop == index + 1:
                    self.arguments.arrays.pop(tensor.name, None)

    def _run(self, graph: Graph, kernel: Kernel) -> None:
        places, size_bytes = _places(graph, kernel)
        pool, arrays = self.device.device_pool, self.arguments.arrays
        # What is not copied in must not be what an earlier kernel left there.
        self.device.compute.fill(Span(pool, 0, size_bytes), POISON_BYTE)
        self.device.synchronize()
        for name, start in places.items():
            if name in arrays:
                self.device.write(Span(pool, start, arrays[name].nbytes), arrays[name])
        starts = [places[storage_of(graph, operand.tensor)] for operand in kernel.operands]
        operands = list(zip(starts, kernel.operands, strict=True))
        views = [pool.view(start, operand.shape, operand.dtype) for start, operand in operands]
        spans = [Span(pool, start, operand.size_bytes) for start, operand in operands]
        inputs = len(kernel.inputs)
        self.device.compute.launch(self.library.bind(kernel.function, views), spans[:inputs], spans[inputs:])
        self.device.synchronize()
        for operand in kernel.outputs:
            tensor = graph.by_name[storage_of(graph, operand.tensor)]
            arrays[tensor.name] = self.device.read(Span(pool, places[tensor.name], tensor.size_bytes))


def _places(graph: Graph, kernel: Kernel) -> tuple[dict[str, int], int]:
    """Return the first bytes of a kernel's operands, one behind the other, by tensor; and the bytes of all."""
    places: dict[str, int] = {}
    end = 0
    for operand in kernel.operands:
        name = storage_of(graph, operand.tensor)
        if name not in places:
            places[name] = end
            end += aligned(max(operand.size_bytes, graph.by_name[name].size_bytes, 1))
    return places, end


@contextmanager
def plain_on_device(graph: Graph, opened: OpenDevice) -> Iterator[tuple[str, StreamExecutor | KernelByKernel]]:
    """Yield the plain step on a device, and how it runs there: `plain step` or `kernel by kernel`.

    All tensors are in device memory, or, where they do not fit, in memory of the host, and each kernel's operands are
    copied to the device and back. `graph` is the step as lowered, with the implementations that run.

    Raises:
        AutotmError: the device cannot be had, or has too little memory for one kernel.
    """
    program = plain_program(graph)
    with ExitStack() as stack:
        try:
            device, kernels = stack.enter_context(opened(device_bytes(graph, graph, program), 0))
        except DeviceMemoryError as error:
            log.info("the plain step is run kernel by kernel, its tensors in memory of the host: %s", error)
        else:
            arguments = DeviceArguments.of(graph, graph, program, device)
            yield PLAIN_STEP, prepare_streams(graph, kernels, program, arguments)
            return
        largest, size_bytes = largest_kernel(graph)
        try:
            device, kernels = stack.enter_context(opened(size_bytes, 0))
        except DeviceMemoryError as error:
            raise AutotmError(
                f"verification: the operands of kernel '{largest.name}' alone take {size_bytes} bytes of device "
                f"memory: {error}; to run without a comparison set run.verify_steps: 0"
            ) from None
        yield KERNEL_BY_KERNEL, KernelByKernel(program, HostValues(graph), device, kernels)
