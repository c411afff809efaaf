"""A program as a flat list of calls, prepared before the first; debug mode makes dead tensors' memory NaN."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from autotm.kernels.library import Array, KernelLibrary
from autotm.memory.copies import AsyncCopy
from autotm.memory.emulation import wait_until
from autotm.memory.tiers import Tiers
from autotm.model.cache import amplified_bytes
from autotm.model.graph import Graph, Tier, slow_traffic
from autotm.model.program import Address, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.runtime.arguments import Arguments

Call = Callable[[], None]


class Values(Protocol):
    """Arguments of a step, wherever they are."""

    def fill(self, seed: int, cpus: Sequence[int] = ()) -> None:
        """Make every argument what it is before the first step, on `cpus` if given; results become zero."""

    def value(self, name: str) -> Array:
        """Return an argument as it is now."""


class StepExecutor(Protocol):
    """One training step in its memory, ready to run: what verifying, timing and recording need of it.

    On the host (`Executor`), on a device's streams (`StreamExecutor`), or there kernel by kernel (`KernelByKernel`).
    """

    @property
    def program(self) -> Program:
        """The program that it runs."""

    @property
    def arguments(self) -> Values:
        """Parameters, inputs and results."""

    def step(self) -> None:
        """Run one step to its end: parameters are updated in place, results overwritten."""


# On the host: everything is looked up, viewed and priced before the first call.


@dataclass(frozen=True)
class Executor:
    """One training step on the host.

    Attributes:
        program: that it runs.
        arguments: where those are that no plan places.
        tiers: the pools of the program.
        calls: in execution order; a kernel with slow operands, slow pages, or misses in a cache, on an emulated tier is
            followed by its delay.
        spans: per program step, the half-open range of its calls.
        async_copies: copies that overlap kernels, by the number of their move.
    """

    program: Program
    arguments: Arguments
    tiers: Tiers
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
    waits = {step.move: place for place, step in enumerate(program.steps) if isinstance(step, WaitMoveStep)}
    async_copies: dict[int, AsyncCopy] = {}
    calls: list[Call] = []
    spans = []
    for step in program.steps:
        first = len(calls)
        match step:
            case KernelStep():
                kernel = graph.kernels[step.kernel]
                views = [
                    arguments.view(operand)
                    if address.offset is None
                    else tiers.pool(address.tier).view(address.offset, operand.shape, operand.dtype)
                    for operand, address in zip(kernel.operands, step.addresses, strict=True)
                ]
                calls.append(library.bind(kernel.function, views))
                if delay_ns := _delay_ns(graph, program, step, tiers):
                    calls.append(functools.partial(_wait, delay_ns))
            case MoveStep():
                calls.append(functools.partial(tiers.copy, *_ends(step, tiers), step.destination.tier))
            case StartMoveStep():
                # Of the copies under way, the one that is waited for first is the most urgent.
                copy = tiers.async_copy(*_ends(step, tiers), step.destination.tier, waits[step.move])
                async_copies[step.move] = copy
                calls.append(copy.start)
            case WaitMoveStep():
                calls.append(async_copies[step.move].wait)
        spans.append((first, len(calls)))
    return Executor(program, arguments, tiers, tuple(calls), tuple(spans), async_copies)


def heaviest_call(graph: Graph, executor: Executor) -> Call:
    """Return the kernel of the step with the most arithmetic, without its wait."""
    spans = [
        (graph.kernels[step.kernel].flops, first)
        for step, (first, _) in zip(executor.program.steps, executor.spans, strict=True)
        if isinstance(step, KernelStep)
    ]
    return executor.calls[max(spans)[1]]


def _delay_ns(graph: Graph, program: Program, step: KernelStep, tiers: Tiers) -> int:
    """Return the emulated cost of a kernel's slow operands, slow pages or cache misses."""
    kernel = graph.kernels[step.kernel]
    if program.cache_traffic_bytes:
        fetched, written = program.cache_traffic_bytes[step.kernel]
        return tiers.cache_delay_ns(kernel.op_class, fetched, written, amplified_bytes(graph, kernel, fetched))
    if program.paged_traffic:
        return tiers.paged_delay_ns(kernel.op_class, program.paged_traffic[step.kernel])
    config = "".join(address.tier.letter for address in step.addresses)
    return tiers.kernel_delay_ns(kernel.op_class, *slow_traffic(graph, kernel, config))


def _ends(step: MoveStep | StartMoveStep, tiers: Tiers) -> tuple[Array, Array]:
    """Return the destination and source of a move."""
    places = (step.destination, step.source)
    assert all(place.offset is not None for place in places), "arguments never move"
    to, out_of = (tiers.pool(place.tier).view(place.offset or 0, (step.size_bytes,), "uint8") for place in places)
    return to, out_of


def _wait(delay_ns: int) -> None:
    wait_until(time.perf_counter_ns() + delay_ns)


# Debug mode: memory becomes NaN as soon as its tensor is dead, so that a read of it cannot go unseen.


class _Place(NamedTuple):
    """Where a tensor is in a pool."""

    tensor: str
    tier: Tier
    offset: int


def poisoned(graph: Graph, executor: Executor) -> Executor:
    """Return the same step, with both pools poisoned now and each tensor's memory again after its last use there."""
    tiers = executor.tiers
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
    """Return, by program step, the memory (tier, offset, bytes) that nothing reads after it before the next write."""
    dead: list[list[tuple[Tier, int, int]]] = [[] for _ in program.steps]
    # The next step reads the arguments that are in the pools.
    needed = {
        place
        for step in program.steps
        if isinstance(step, KernelStep)
        for accesses in _accesses(graph, step)
        for place in accesses
        if graph.by_name[place.tensor].held
    }
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


def _accesses(graph: Graph, step: KernelStep | MoveStep | StartMoveStep) -> tuple[list[_Place], list[_Place]]:
    """Return the places in the pools that a kernel or a move reads, and those it writes."""
    if isinstance(step, KernelStep):
        kernel = graph.kernels[step.kernel]
        uses = [(operand.tensor, address) for operand, address in zip(kernel.operands, step.addresses, strict=True)]
        read, written = uses[: len(kernel.inputs)], uses[len(kernel.inputs) :]
    else:
        read, written = [(step.tensor, step.source)], [(step.tensor, step.destination)]

    def in_pools(some: Sequence[tuple[str, Address]]) -> list[_Place]:
        return [_Place(tensor, address.tier, address.offset) for tensor, address in some if address.offset is not None]

    return in_pools(read), in_pools(written)
