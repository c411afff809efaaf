"""A schedule on a device, every call bound before the first; and the kernels of a fatbin as such calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotm.kernels.library import FatbinLibrary, Launches
from autotm.memory.gpu.cuda_device import CudaCode, CudaDevice
from autotm.memory.gpu.cuda_memory import DeviceArray
from autotm.memory.gpu.interface import Device, Event, Span, Stream
from autotm.memory.pool import POISON_BYTE
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Tier
from autotm.model.program import Program
from autotm.model.timeline import Lane, TimedOperation, Timeline
from autotm.runtime.streams.schedule import Bytes, DeviceArguments, Operation, Schedule, operations, schedule

# The kernels of a fatbin as calls: neither TVM nor a compiler is needed.


@dataclass(frozen=True)
class LaunchedKernels:
    """Kernels as launches on a device's compute stream.

    Attributes:
        code: loaded on the device.
        launches: of each kernel.
        device: to launch on.
    """

    code: CudaCode
    launches: Launches
    device: CudaDevice

    @classmethod
    def on(cls, device: CudaDevice, library: FatbinLibrary) -> LaunchedKernels:
        """The kernels of a library, loaded on a device; they go with its context, when the process ends.

        Raises:
            AutotmError: the driver refuses them.
        """
        return cls(CudaCode.load(library.image), library.launches, device)

    def bind(self, symbol: str, views: Sequence[DeviceArray]) -> Call:
        """The kernel on views of the device's pool, inputs, outputs, then workspaces; returns when it is launched.

        Raises:
            BadInputError: there is no such kernel.
            AutotmError: the code lacks a function of it.
        """
        if symbol not in self.launches:
            raise BadInputError(f"no launches of kernel '{symbol}': they belong to another graph; make both again")
        return self.code.bound(self.launches[symbol], [view.address for view in views], self.device.compute)


Call = Callable[[], None]


class Kernels(Protocol):
    """Compiled kernels that a device runs: `LaunchedKernels` of a fatbin."""

    def bind(self, symbol: str, views: Sequence[Any]) -> Call:
        """The kernel of that name on views of a device's pool, one per operand, as a call that launches it."""


@dataclass(frozen=True)
class StreamExecutor:
    """One training step on a device, ready to run.

    Attributes:
        program: that it runs.
        device: on which.
        order: its operations, and which wait for which.
        queued: for each operation, what hands it to its stream.
        marks: for each operation that others wait for, its event.
    """

    program: Program
    device: Device
    order: Schedule
    queued: tuple[Call, ...]
    marks: Mapping[int, Event] = field(repr=False)

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
            TimedOperation(one.lane, one.name, _copied_bytes(one), elapsed(begin), elapsed(end))
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
    graph: Graph,
    library: Kernels,
    program: Program,
    arguments: DeviceArguments,
    *,
    poison: bool = False,
    rescheduled: Callable[[Schedule], Schedule] | None = None,
) -> StreamExecutor:
    """Bind every operation of `program` to the device of its arguments.

    Args:
        graph: the step with what the limit counts and the implementations that the program runs.
        library: its kernels, compiled for the device.
        program: of that graph.
        arguments: where those are that it does not place.
        poison: overwrite memory as soon as its tensor is dead.
        rescheduled: changes the waits, to see whether a test misses one.

    Raises:
        AutotmError: an address leaves its pool or is not aligned.
        BadInputError: the library lacks a kernel, or a kernel has an operand in slow memory.
    """
    device = arguments.device
    order = schedule(operations(graph, program, arguments, poison=poison))
    if rescheduled is not None:
        order = rescheduled(order)
    queued = tuple(_queued(graph, library, device, operation) for operation in order.operations)
    return StreamExecutor(program, device, order, queued, {index: device.event() for index in order.awaited})


def stream_of(device: Device, lane: Lane) -> Stream:
    """The stream of a lane."""
    return {Lane.COMPUTE: device.compute, Lane.INWARD: device.inward, Lane.OUTWARD: device.outward}[lane]


def _queued(graph: Graph, library: Kernels, device: Device, operation: Operation) -> Call:
    stream = stream_of(device, operation.lane)
    reads = [_span(device, used) for used in operation.reads]
    writes = [_span(device, used) for used in operation.writes]
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
    return _nothing


def _span(device: Device, used: Bytes) -> Span:
    return Span(device.device_pool if used.tier is Tier.FAST else device.host_pool, used.start, used.size_bytes)


def _copied_bytes(operation: Operation) -> int:
    return 0 if operation.lane is Lane.COMPUTE else operation.writes[0].size_bytes


def _nothing() -> None:
    """The start and the end of a step are events only."""
