"""A program as work of a device's streams, and the fewest events that order work on the same bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import Span
from autotm.model.errors import BadInputError
from autotm.model.graph import ALIGNMENT_BYTES, Graph, Operand, Tensor, Tier
from autotm.model.limit import storage_of
from autotm.model.plan import SWAP_ALL
from autotm.model.program import Address, Instruction, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.model.timeline import Lane
from autotm.runtime.arguments import initial_value, own_arguments, placed_arguments
from autotm.runtime.executor import deaths

# The tensors that outlive a step, in the pools of a device: behind what the program places, or where it has them.

Array = npt.NDArray[Any]


def device_bytes(graph: Graph, counted: Graph, program: Program) -> int:
    """Return the device memory that a program takes: its fast pool, and behind it the arguments that it does not place.

    Args:
        graph: as lowered.
        counted: the same with what the limit counts.
        program: of `counted`.
    """
    placed = placed_arguments(counted, program)
    own = sum(tensor.allocated_bytes for tensor in own_arguments(graph) if tensor.name not in placed)
    return aligned(program.fast_bytes) + own


@dataclass(frozen=True)
class DeviceArguments:
    """Where every argument is. An alias shares the memory of the tensor it takes over.

    Attributes:
        graph: as lowered; its arguments keep their own names.
        device: whose pools they are in.
        places: pool and first byte by name of the tensor whose memory it is.
    """

    graph: Graph
    device: CudaDevice
    places: Mapping[str, tuple[Tier, int]]

    @classmethod
    def of(cls, graph: Graph, counted: Graph, program: Program, device: CudaDevice) -> DeviceArguments:
        """Return the places in a device whose pool has `device_bytes`."""
        places = placed_arguments(counted, program)
        end = aligned(program.fast_bytes)
        for tensor in own_arguments(graph):
            if tensor.name not in places:
                places[tensor.name] = Tier.FAST, end
                end += tensor.allocated_bytes
        return cls(graph, device, places)

    def fill(self, seed: int, cpus: Sequence[int] = ()) -> None:
        """Make every argument what it is before the first step; results become zero. The streams must stand still."""
        del cpus  # Copies to a device take turns.
        for tensor in own_arguments(self.graph):
            self.device.write(self._span(tensor), initial_value(tensor, seed))

    def value(self, name: str) -> Array:
        """Return a copy of argument `name` as it is now. The streams must stand still."""
        tensor = self.graph.by_name[name]
        return self.device.read(self._span(tensor)).view(tensor.dtype).reshape(tensor.shape)

    def place(self, name: str) -> tuple[Tier, int]:
        """Return the pool and the first byte of an argument."""
        return self.places[storage_of(self.graph, name)]

    def _span(self, tensor: Tensor) -> Span:
        return span_of(self.device, *self.place(tensor.name), tensor.size_bytes)


def span_of(device: CudaDevice, tier: Tier, start: int, size_bytes: int) -> Span:
    """Return the bytes of the pool that plays a tier."""
    return Span(device.device_pool if tier is Tier.FAST else device.host_pool, start, size_bytes)


def aligned(size_bytes: int) -> int:
    """Round up to where the next tensor may begin."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# A program as what its streams do: kernels, copies, and the bytes that each reads and writes.


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes [start, stop) of the pool of a tier."""

    tier: Tier
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True)
class Operation:
    """Work for one stream.

    Attributes:
        lane: its stream.
        name: of the kernel or the tensor.
        kernel: index of the kernel; None for copies and poison.
        reads, writes: the bytes; of a kernel one for each operand, inputs before outputs; of a copy one each.
        is_blocking: the kernels after it wait for it, and it for those before, whatever bytes they touch: a move that
            its plan has the step wait for.
        is_poison: it writes what nobody may read, to try a program out.
        after: operations of the list that it waits for whatever bytes they touch, by index.
    """

    lane: Lane
    name: str
    kernel: int | None
    reads: tuple[Bytes, ...]
    writes: tuple[Bytes, ...]
    is_blocking: bool = False
    is_poison: bool = False
    after: tuple[int, ...] = ()

    @property
    def copied_bytes(self) -> int:
        """Bytes of a copy; 0 for kernels and poison."""
        return 0 if self.lane is Lane.COMPUTE else self.writes[0].size_bytes


def operations(graph: Graph, program: Program, arguments: DeviceArguments, *, poison: bool = False) -> list[Operation]:
    """List the operations of the streams in one step, in program order; whoever schedules them adds the waits.

    Args:
        graph: the step with what the limit counts and the implementations that the program runs.
        program: the program to be run.
        arguments: where the tensors are that the program does not place.
        poison: overwrite memory as soon as its tensor is dead.

    Raises:
        BadInputError: a kernel has an operand in slow memory, which kernels of a device do not reach.
    """
    dead = deaths(graph, program) if poison else [[] for _ in program.steps]
    waits = {step.move: place for place, step in enumerate(program.steps) if isinstance(step, WaitMoveStep)}
    listed: list[Operation] = []
    copies: dict[int, int] = {}
    waited: list[int] = []
    for step, ends in zip(_most_urgent_first(program.steps, waits), dead, strict=True):
        match step:
            case KernelStep():
                kernel = graph.kernels[step.kernel]
                slots = zip(kernel.operands, step.addresses, strict=True)
                used = [_operand(kernel.name, operand, address, arguments) for operand, address in slots]
                reads, writes = tuple(used[: len(kernel.inputs)]), tuple(used[len(kernel.inputs) :])
                after, waited = tuple(waited), []
                listed.append(Operation(Lane.COMPUTE, kernel.name, step.kernel, reads, writes, after=after))
            case MoveStep() | StartMoveStep():
                if isinstance(step, StartMoveStep):
                    copies[step.move] = len(listed)
                source, destination = (_moved(address, step.size_bytes) for address in (step.source, step.destination))
                lane = Lane.INWARD if destination.tier is Tier.FAST else Lane.OUTWARD
                is_blocking = isinstance(step, MoveStep)
                listed.append(Operation(lane, step.tensor, None, (source,), (destination,), is_blocking=is_blocking))
            case WaitMoveStep():
                # Who needs the bytes waits for the copy itself; where tensors are swapped, the next kernel does too.
                if program.optimizer == SWAP_ALL:
                    waited.append(copies[step.move])
        for tier, start, size_bytes in ends:
            written = Bytes(tier, start, start + size_bytes)
            listed.append(Operation(Lane.COMPUTE, "poison", None, (), (written,), is_poison=True))
    return listed


def _moved(address: Address, size_bytes: int) -> Bytes:
    assert address.offset is not None, "arguments never move"
    return Bytes(address.tier, address.offset, address.offset + size_bytes)


def _most_urgent_first(steps: Sequence[Instruction], waits: Mapping[int, int]) -> Iterator[Instruction]:
    """Yield the steps; of moves that start between the same two kernels, the one waited for first comes first.

    A stream makes its copies in the order in which it got them. The engine of the window model serves the most urgent
    first, and interrupts others for it, which a stream cannot.
    """
    for _, group in groupby(steps, lambda step: isinstance(step, StartMoveStep)):
        yield from sorted(group, key=lambda step: waits[step.move] if isinstance(step, StartMoveStep) else 0)


def _operand(kernel: str, operand: Operand, address: Address, arguments: DeviceArguments) -> Bytes:
    tier, start = arguments.place(operand.tensor) if address.offset is None else (address.tier, address.offset)
    if tier is not Tier.FAST:
        raise BadInputError(
            f"kernel '{kernel}': operand '{operand.tensor}' is in slow memory, which kernels of a device do not reach; "
            "solve again for a machine whose slow_tier is of kind cuda"
        )
    return Bytes(tier, start, start + operand.size_bytes)


# Which work waits for which: the fewest events that order all work that touches the same bytes.
#
# Streams keep their own order, so of another stream's work that an operation must follow, only the last is waited for,
# and not even that where it is known to be done already, because this stream, or one that it waited for, waited for it
# before. What is known is a vector clock, a count for each stream (Mattern, 1989). Tests check the result on threads
# while it runs, without any of this.
#
# A step begins when the one before it is over: the first work of the compute stream comes before everything, the last
# after.

Clock = dict[Lane, int]
START = Operation(Lane.COMPUTE, "start", None, (), ())
END = Operation(Lane.COMPUTE, "end", None, (), ())
LANES = tuple(Lane)


@dataclass(frozen=True)
class Schedule:
    """One step.

    Attributes:
        operations: in the order in which they are handed to their streams; the first and the last do nothing.
        waits: for each, the operations of other streams that its stream waits for before it.
    """

    operations: tuple[Operation, ...]
    waits: tuple[tuple[int, ...], ...]

    @property
    def awaited(self) -> frozenset[int]:
        """Operations that an event follows."""
        return frozenset(other for waits in self.waits for other in waits)


def schedule(listed: Sequence[Operation]) -> Schedule:
    """Order operations as far as their bytes, and moves that the step waits for, need it."""
    scheduled = (START, *listed, END)
    touched = {tier: _Touched.of(listed, tier) for tier in Tier}
    known: dict[Lane, Clock] = {lane: dict.fromkeys(LANES, -1) for lane in LANES}
    after: list[Clock] = []
    last = dict.fromkeys(LANES, -1)
    chain = 0
    waits = []
    for index, operation in enumerate(scheduled):
        clock = known[operation.lane]
        needed = set(last.values()) if operation is END else {0}
        for used in operation.reads:
            needed |= touched[used.tier].last(used, operation.lane, reads=False)
        for used in operation.writes:
            needed |= touched[used.tier].last(used, operation.lane, reads=True)
        needed.update(1 + other for other in operation.after)  # START comes before the first.
        blocked = operation.is_blocking or operation.lane is Lane.COMPUTE
        if blocked:
            needed.add(chain)
        waits.append(_missing(needed, operation.lane, scheduled, clock, after))
        clock[operation.lane] = last[operation.lane] = index
        after.append(dict(clock))
        for used in operation.reads:
            touched[used.tier].readers[operation.lane][touched[used.tier].segments(used)] = index
        for used in operation.writes:
            touched[used.tier].writers[operation.lane][touched[used.tier].segments(used)] = index
        if blocked:
            chain = index
    return Schedule(scheduled, tuple(waits))


def _missing(
    needed: set[int], lane: Lane, scheduled: Sequence[Operation], clock: Clock, after: Sequence[Clock]
) -> tuple[int, ...]:
    """Return those of `needed` that the stream of `lane` does not know to be done; `clock` knows them afterwards."""
    missing = []
    # The last come first: they know of earlier ones, never the other way round.
    for other in sorted(needed, reverse=True):
        if 0 <= other < len(after) and scheduled[other].lane is not lane and clock[scheduled[other].lane] < other:
            missing.append(other)
            for each in LANES:
                clock[each] = max(clock[each], after[other][each])
    return tuple(missing)


@dataclass(frozen=True)
class _Touched:
    """Who last read and wrote each byte of a pool, for each stream; bytes that are always touched together are one."""

    bounds: list[int]
    readers: dict[Lane, npt.NDArray[np.int64]] = field(default_factory=dict)
    writers: dict[Lane, npt.NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, listed: Sequence[Operation], tier: Tier) -> _Touched:
        touched = (one for work in listed for one in (*work.reads, *work.writes) if one.tier is tier)
        ends = sorted({end for one in touched for end in (one.start, one.stop)})
        return cls(ends, *({lane: np.full(len(ends), -1, np.int64) for lane in LANES} for _ in range(2)))

    def last(self, used: Bytes, lane: Lane, *, reads: bool) -> set[int]:
        """Return the last operation of each other stream that wrote these bytes, or also read them."""
        if not used.size_bytes:
            return set()
        at = self.segments(used)
        tables = (self.writers, self.readers) if reads else (self.writers,)
        return {int(table[other][at].max()) for table in tables for other in LANES if other is not lane}

    def segments(self, used: Bytes) -> slice:
        return slice(bisect_left(self.bounds, used.start), bisect_left(self.bounds, used.stop))
