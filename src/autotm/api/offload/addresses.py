"""Addresses of a plan's tensors: in the pool on the host, and in an arena of device memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, count

import numpy as np

from autotm.api.offload.measuring import Measured, OperatorMemory
from autotm.api.offload.step_graph import Run, is_state, place_of
from autotm.joint_graph import Step
from autotm.layout.packing import Blocks, layout_of, pack_blocks
from autotm.memory.torch_arena import OUTSIDE, Place
from autotm.model.graph import Graph, Role, Tier
from autotm.model.plan import Plan
from autotm.model.program import Layout

_PACKED_S = 5.0
"""Seconds after which only quick ways to pack the arena are tried."""


def on_host(graph: Graph, plan: Plan) -> Layout:
    """Return places on the host; state of an optimizer keeps its own. On the device PyTorch's allocator chooses."""
    is_kept = [graph.by_name[stay.tensor].slow_at is not None for stay in plan.stays]
    is_packed = [stay.tier is Tier.SLOW and not kept for stay, kept in zip(plan.stays, is_kept, strict=True)]
    packed = layout_of(graph, replace(plan, stays=tuple(compress(plan.stays, is_packed))))
    offsets, slow_bytes = [0] * len(plan.stays), packed.slow_bytes
    states: dict[int, int] = {}
    for number, offset in zip(compress(count(), is_packed), packed.offsets, strict=True):
        offsets[number] = offset
    for number, stay in enumerate(plan.stays):
        if stay.tier is Tier.SLOW and is_kept[number]:
            if (operator := place_of(stay.tensor)) not in states:
                states[operator] = slow_bytes
                slow_bytes += graph.by_name[stay.tensor].allocated_bytes
            offsets[number] = states[operator]
    return Layout(plan.stays, tuple(offsets), 0, slow_bytes)


def with_arena(graph: Graph, layout: Layout, budget_bytes: int) -> Layout:
    """Add the places of fast stays: first the arena, and behind it arguments, whose real places are their own.

    Args:
        graph: the step.
        layout: `on_host`.
        budget_bytes: for all fast stays; they take more where no packing within it is found.
    """
    offsets = [*layout.offsets]
    sizes = {tensor.name: tensor.allocated_bytes for tensor in graph.tensors}
    fast = [number for number, stay in enumerate(layout.stays) if stay.tier is Tier.FAST]
    held = [number for number in fast if graph.by_name[layout.stays[number].tensor].held]
    held_bytes = sum(sizes[layout.stays[number].tensor] for number in held)
    groups = list(_in_one_piece(graph, layout, {*fast} - {*held}))
    columns = [
        (sizes[layout.stays[group[0]].tensor], layout.stays[group[0]].start, layout.stays[group[-1]].end)
        for group in groups
    ]
    blocks = Blocks(*np.array(columns, np.int64).reshape(-1, 3).T)
    packed = pack_blocks(blocks, budget_bytes - held_bytes, time.perf_counter() + _PACKED_S)
    for group, offset in zip(groups, packed.tolist(), strict=True):
        for number in group:
            offsets[number] = offset
    end = blocks.height(packed)
    for number in held:
        offsets[number] = end
        end += sizes[layout.stays[number].tensor]
    return replace(layout, offsets=tuple(offsets), fast_bytes=end)


def _in_one_piece(graph: Graph, layout: Layout, stays: Iterable[int]) -> Iterator[list[int]]:
    """Yield groups of stays that one allocation holds: an optimizer's state before its update and afterwards."""
    before: dict[tuple[int, int], int] = {}
    for number in sorted(stays, key=lambda number: layout.stays[number].start):
        stay = layout.stays[number]
        match graph.by_name[stay.tensor].role:
            case Role.FETCHED:
                before[place_of(stay.tensor), stay.end] = number
            case Role.STORED if (first := before.pop((place_of(stay.tensor), stay.start), None)) is not None:
                yield [first, number]
            case _:
                yield [number]
    yield from ([number] for number in before.values())


def places_of(
    step: Step, graph: Graph, runs: Sequence[Run | None], plan: Plan, layout: Layout, measured: Measured
) -> list[list[Place]]:
    """Return where in the arena allocations go: of each kernel but for the last, of each as if it ran first, of moves.

    State that is on the device all the time is outside: it stays when a step ends.

    Args:
        step: as captured.
        graph: its kernels, with those that run again.
        runs: operators by kernel.
        plan: its moves.
        layout: with an arena.
        measured: what operators allocate.
    """
    offsets = {
        (stay.tensor, stay.start): offset
        for stay, offset in zip(layout.stays, layout.offsets, strict=True)
        if stay.tier is Tier.FAST
    }
    states = {
        place_of(name): offset for (name, _), offset in offsets.items() if graph.by_name[name].role is Role.FETCHED
    }

    def places(index: int, *, is_first: bool) -> Iterator[Place]:
        kernel, run = graph.kernels[index], runs[index]
        results = {step.storages[place_of(one.tensor)].element: offsets[one.tensor, index] for one in kernel.outputs}
        workspace = sum(offsets[one.tensor, index] for one in kernel.workspaces if not is_state(one.tensor))
        memory = OperatorMemory(0) if run is None else measured.memory[run.operator]
        made = (offsets[one.tensor, index] for one in kernel.workspaces if is_state(one.tensor))
        state = next(made, states.get(place_of(kernel.name)))
        for one in memory.first_allocations if is_first else memory.allocations:
            begin = results[one.element] if one.element is not None else state if one.is_state else workspace
            yield Place(one.size_bytes, OUTSIDE if begin is None else begin + one.offset)

    kernels = range(len(runs))
    points = [[*places(index, is_first=is_first)] for is_first in (False, True) for index in kernels]
    for move in plan.moves:
        begin = move.before if move.since is None else move.since
        tensor, is_in = graph.by_name[move.tensor], move.destination is Tier.FAST
        size_bytes = measured.sizes[place_of(tensor.name)] if tensor.slow_at is None else tensor.size_bytes
        points.append([Place(size_bytes, offsets[move.tensor, begin])] if is_in else [])
    return points
