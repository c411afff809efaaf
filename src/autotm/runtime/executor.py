"""A program as a flat list of calls, prepared before the first; debug mode makes dead tensors' memory NaN."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotm.kernels.library import Array, KernelLibrary
from autotm.memory.copies import AsyncCopy
from autotm.memory.emulation import wait_until
from autotm.memory.tiers import Tiers
from autotm.model.cache import amplified_bytes
from autotm.model.graph import Graph, Kernel, Tier, slow_traffic
from autotm.model.program import Address, Instruction, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.runtime.arguments import Arguments

# A program as a flat list of calls: everything is looked up, viewed and priced before the first one.

Call = Callable[[], None]


@dataclass(frozen=True)
class Executor:
    """One training step, ready to run.

    Attributes:
        calls: in execution order; a kernel with slow operands, slow pages, or misses in a cache, on an emulated tier is
            followed by its delay.
        spans: per program step, the half-open range of its calls.
        async_copies: copies beside kernels, by the number of their move.
    """

    program: Program
    calls: tuple[Call, ...]
    spans: tuple[tuple[int, int], ...]
    async_copies: Mapping[int, AsyncCopy]

    def step(self) -> None:
        """Run one training step: parameters are updated in place, results overwritten."""
        for call in self.calls:
            call()

    def instrumented_step(self) -> list[int]:
        """Run one training step and return the nanoseconds of each program step, delays included."""
        marks = self.marked_step()
        return [marks[end] - marks[first] for first, end in self.spans]

    def marked_step(self) -> list[int]:
        """Run one training step and return the clock, `perf_counter_ns`, before the first call and after each."""
        now = time.perf_counter_ns
        marks = [now()]
        for call in self.calls:
            call()
            marks.append(now())
        return marks


def prepare(graph: Graph, library: KernelLibrary, program: Program, arguments: Arguments, tiers: Tiers) -> Executor:
    """Bind every step of `program` to memory.

    Raises:
        AutotmError: an address leaves its pool or is not aligned.
        BadInputError: the library lacks a kernel.
    """
    async_copies = _async_copies(program, tiers)
    builder = _Builder(graph, library, program, arguments, tiers, async_copies)
    calls: list[Call] = []
    spans = []
    for step in program.steps:
        first = len(calls)
        calls += builder.calls(step)
        spans.append((first, len(calls)))
    return Executor(program, tuple(calls), tuple(spans), async_copies)


def heaviest_call(graph: Graph, executor: Executor) -> Call:
    """The kernel of the step with the most arithmetic, without its wait."""
    spans = [
        (graph.kernels[step.kernel].flops, first)
        for step, (first, _) in zip(executor.program.steps, executor.spans, strict=True)
        if isinstance(step, KernelStep)
    ]
    return executor.calls[max(spans)[1]]


@dataclass(frozen=True)
class _Builder:
    graph: Graph
    library: KernelLibrary
    program: Program
    arguments: Arguments
    tiers: Tiers
    async_copies: dict[int, AsyncCopy]

    def calls(self, step: Instruction) -> list[Call]:
        match step:
            case KernelStep():
                return self._kernel(step)
            case MoveStep():
                views = _ends(step, self.tiers)
                return [functools.partial(self.tiers.copy, *views, step.destination.tier)]
            case StartMoveStep():
                return [self.async_copies[step.move].start]
            case WaitMoveStep():
                return [self.async_copies[step.move].wait]

    def _kernel(self, step: KernelStep) -> list[Call]:
        kernel = self.graph.kernels[step.kernel]
        views = [self._operand(kernel, slot, address) for slot, address in enumerate(step.addresses)]
        call = self.library.bind(kernel.function, views)
        delay_ns = self._delay_ns(step, kernel)
        return [call, functools.partial(_wait, delay_ns)] if delay_ns else [call]

    def _delay_ns(self, step: KernelStep, kernel: Kernel) -> int:
        if self.program.cache_traffic_bytes:
            fetched, written = self.program.cache_traffic_bytes[step.kernel]
            own = amplified_bytes(self.graph, kernel, fetched)
            return self.tiers.cache_delay_ns(kernel.op_class, fetched, written, own)
        if self.program.paged_traffic:
            return self.tiers.paged_delay_ns(kernel.op_class, self.program.paged_traffic[step.kernel])
        config = "".join(address.tier.letter for address in step.addresses)
        return self.tiers.kernel_delay_ns(kernel.op_class, *slow_traffic(self.graph, kernel, config))

    def _operand(self, kernel: Kernel, slot: int, address: Address) -> Array:
        operand = kernel.operands[slot]
        if address.offset is None:
            return self.arguments.view(operand)
        return self.tiers.pool(address.tier).view(address.offset, operand.shape, operand.dtype)


def _async_copies(program: Program, tiers: Tiers) -> dict[int, AsyncCopy]:
    """The asynchronous moves by number; the one that is waited for first is the most urgent."""
    waits = {step.move: place for place, step in enumerate(program.steps) if isinstance(step, WaitMoveStep)}
    return {
        step.move: tiers.async_copy(*_ends(step, tiers), step.destination.tier, waits[step.move])
        for step in program.steps
        if isinstance(step, StartMoveStep)
    }


def _ends(step: MoveStep | StartMoveStep, tiers: Tiers) -> tuple[Array, Array]:
    """Destination and source of a move."""
    places = (step.destination, step.source)
    assert all(place.offset is not None for place in places), "arguments never move"
    to, out_of = (tiers.pool(place.tier).view(place.offset or 0, (step.size_bytes,), "uint8") for place in places)
    return to, out_of


def _wait(delay_ns: int) -> None:
    wait_until(time.perf_counter_ns() + delay_ns)


# Debug mode: memory becomes NaN as soon as its tensor is dead, so that a read of it cannot go unseen.


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is in a pool."""

    tensor: str
    tier: Tier
    offset: int


def poisoned(graph: Graph, executor: Executor, tiers: Tiers) -> Executor:
    """The same step, with both pools poisoned now and each tensor's memory again after its last use there."""
    for pool in (tiers.fast, tiers.slow):
        pool.poison(0, pool.size_bytes)
    calls: list[Call] = []
    spans = []
    for (start, stop), dead in zip(executor.spans, deaths(graph, executor.program), strict=True):
        first = len(calls)
        calls += executor.calls[start:stop]
        for tier, offset, size_bytes in dead:
            calls.append(functools.partial(tiers.pool(tier).poison, offset, size_bytes))
        spans.append((first, len(calls)))
    return replace(executor, calls=tuple(calls), spans=tuple(spans))


def deaths(graph: Graph, program: Program) -> list[list[tuple[Tier, int, int]]]:
    """Per program step, the memory (tier, offset, bytes) that nothing reads after it before it is written again."""
    dead: list[list[tuple[Tier, int, int]]] = [[] for _ in program.steps]
    needed = _held_places(graph, program)
    async_copies = {step.move: step for step in program.steps if isinstance(step, StartMoveStep)}
    for index in range(len(program.steps) - 1, -1, -1):
        step = program.steps[index]
        if isinstance(step, StartMoveStep):
            continue  # its memory is used until the wait, which counts as the access
        move = async_copies[step.move] if isinstance(step, WaitMoveStep) else step
        read, written = _accesses(graph, move)
        # A move to slow memory gives the fast copy up, whatever a wrong program may still read there.
        gives_up = not isinstance(move, KernelStep) and move.destination.tier is Tier.SLOW
        left = set(read) if gives_up else set()
        for place in dict.fromkeys(read + written):
            if place not in needed or place in left:
                dead[index].append((place.tier, place.offset, graph.by_name[place.tensor].size_bytes))
        needed = (needed - set(written)) | set(read)
    return dead


def _held_places(graph: Graph, program: Program) -> set[_Place]:
    """Places of arguments in the pools: the next step reads them."""
    steps = [step for step in program.steps if isinstance(step, KernelStep)]
    places = (place for step in steps for accesses in _accesses(graph, step) for place in accesses)
    return {place for place in places if graph.by_name[place.tensor].held}


def _accesses(graph: Graph, step: KernelStep | MoveStep | StartMoveStep) -> tuple[list[_Place], list[_Place]]:
    """Places in the pools that a kernel or a move reads, and those it writes."""
    if not isinstance(step, KernelStep):
        return _places([step.tensor], [step.source]), _places([step.tensor], [step.destination])
    kernel = graph.kernels[step.kernel]
    names, inputs = [operand.tensor for operand in kernel.operands], len(kernel.inputs)
    return (
        _places(names[:inputs], step.addresses[:inputs]),
        _places(names[inputs:], step.addresses[inputs:]),
    )


def _places(tensors: Sequence[str], addresses: Sequence[Address]) -> list[_Place]:
    return [
        _Place(tensor, address.tier, address.offset)
        for tensor, address in zip(tensors, addresses, strict=True)
        if address.offset is not None
    ]
