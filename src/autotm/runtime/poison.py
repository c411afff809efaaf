"""Debug mode: memory becomes NaN as soon as its tensor is dead, so that a read of it cannot go unseen."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotm.memory import Tiers
from autotm.model.plan import Address, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.model.step import Graph, Tier
from autotm.runtime.executor import Call, Executor


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
        gives_up = not isinstance(move, KernelStep) and move.destination.tier is Tier.PMEM
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
