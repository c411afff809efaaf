"""From a plan with offsets to the flat list of steps that the executor runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autotm.model.files import hash_of
from autotm.model.graph import ChosenGraph, CountedGraph, Tier
from autotm.model.plan import Move, Plan
from autotm.model.program import (
    Address,
    Instruction,
    KernelStep,
    Layout,
    MoveStep,
    Program,
    StartMoveStep,
    WaitMoveStep,
)


def compile_program(graph: CountedGraph, plan: Plan, layout: Layout) -> Program:
    """Return the plan as steps over addresses: before each kernel its moves, in the order that `Move` states.

    An asynchronous move's number is its index in the plan.

    `graph` is the step with all implementations; the steps are those of the ones that the plan chose.

    Raises:
        ValueError: the layout belongs to another plan, or the plan leaves an operand without memory.
    """
    if layout.stays != plan.stays:
        raise ValueError("layout was packed for another plan")
    step = plan.step_of(graph)
    return Program(
        graph_hash=plan.graph_hash,
        plan_hash=hash_of(plan),
        optimizer=plan.optimizer,
        limit=plan.limit,
        dram_limit_bytes=plan.dram_limit_bytes,
        fast_bytes=layout.fast_bytes,
        slow_bytes=layout.slow_bytes,
        steps=tuple(_steps(step, plan, _Addresses(layout))),
        implementations=plan.implementations,
        cache_traffic_bytes=plan.cached.traffic_bytes if plan.cached else (),
        paged_traffic=tuple(plan.paged.traffic(step)) if plan.paged else (),
        calls=plan.calls,
    )


class _Addresses:
    """The addresses of tensors during each kernel."""

    def __init__(self, layout: Layout) -> None:
        self._held: dict[tuple[str, Tier], list[tuple[int, int, int]]] = defaultdict(list)
        for stay, offset in zip(layout.stays, layout.offsets, strict=True):
            self._held[stay.tensor, stay.tier].append((stay.start, stay.end, offset))

    def find(self, tensor: str, tier: Tier, kernel: int) -> Address | None:
        """Return the tensor's address in a tier during `kernel`; None if it is not there."""
        for start, end, offset in self._held[tensor, tier]:
            if start <= kernel < end:
                return Address(tier, offset)
        return None

    def require(self, tensor: str, tier: Tier, kernel: int) -> Address:
        """Return the tensor's address as `find` does; raise ValueError if there is none."""
        address = self.find(tensor, tier, kernel)
        if address is None:
            raise ValueError(f"plan keeps '{tensor}' out of {tier} memory at kernel {kernel}, where it is needed")
        return address


def _steps(graph: ChosenGraph, plan: Plan, addresses: _Addresses) -> Iterator[Instruction]:
    ends: dict[int, list[int]] = defaultdict(list)
    starts: dict[int, list[int]] = defaultdict(list)
    blocking: dict[int, list[Move]] = defaultdict(list)
    for number, move in enumerate(plan.moves):
        if move.since is None:
            blocking[move.before].append(move)
        else:
            ends[move.before].append(number)
            starts[move.since].append(number)
    arriving: set[str] = set()
    for index, kernel in enumerate(graph.kernels):
        yield from (WaitMoveStep(number) for number in ends[index])
        arriving -= {plan.moves[number].tensor for number in ends[index]}
        for move in sorted(blocking[index], key=lambda move: (move.destination is Tier.FAST, move.tensor)):
            yield MoveStep(move.tensor, graph.by_name[move.tensor].size_bytes, *_ends(move, addresses))
        for number in starts[index]:
            move = plan.moves[number]
            yield StartMoveStep(number, move.tensor, graph.by_name[move.tensor].size_bytes, *_ends(move, addresses))
            if move.destination is Tier.FAST:
                arriving.add(move.tensor)
        tensors = [operand.tensor for operand in kernel.operands]
        yield KernelStep(index, tuple(_operand(graph, tensor, index, addresses, arriving) for tensor in tensors))


def _ends(move: Move, addresses: _Addresses) -> tuple[Address, Address]:
    """Return the source and destination of a move."""
    if move.destination is Tier.SLOW:
        source = addresses.require(move.tensor, Tier.FAST, move.before - 1)
    else:
        source = addresses.require(move.tensor, Tier.SLOW, move.start)
    return source, addresses.require(move.tensor, move.destination, move.start)


def _operand(graph: ChosenGraph, tensor: str, kernel: int, addresses: _Addresses, arriving: set[str]) -> Address:
    if not graph.by_name[tensor].is_movable:  # Arguments have buffers of their own in fast memory.
        return Address(Tier.FAST, None)
    fast = None if tensor in arriving else addresses.find(tensor, Tier.FAST, kernel)
    return fast or addresses.require(tensor, Tier.SLOW, kernel)
