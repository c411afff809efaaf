"""From a plan with offsets to the flat list of steps that the executor runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autotm.model.files import hash_of
from autotm.model.graph import Graph
from autotm.model.plan import Move, Plan
from autotm.model.program import Address, KernelStep, Layout, MoveStep, Program, Step
from autotm.model.tier import Tier

ARGUMENT = Address(Tier.DRAM, None)
"""Parameters, inputs, constants and results have buffers of their own in fast memory."""


def compile_program(graph: Graph, plan: Plan, layout: Layout) -> Program:
    """The plan as steps over addresses: before each kernel its moves, to slow memory first.

    `graph` is the step with all implementations; the steps are those of the ones that the plan chose.

    Raises:
        ValueError: the layout belongs to another plan, or the plan leaves an operand without memory.
    """
    if layout.stays != plan.stays:
        raise ValueError("layout was packed for another plan")
    return Program(
        graph_hash=plan.graph_hash,
        plan_hash=hash_of(plan),
        optimizer=plan.optimizer,
        limit=plan.limit,
        dram_limit_bytes=plan.dram_limit_bytes,
        fast_bytes=layout.fast_bytes,
        slow_bytes=layout.slow_bytes,
        steps=tuple(_steps(graph.computed_by(plan.implementations), plan, _Addresses(layout))),
        implementations=plan.implementations,
    )


class _Addresses:
    """Where a tensor is during a kernel."""

    def __init__(self, layout: Layout) -> None:
        self._held: dict[tuple[str, Tier], list[tuple[int, int, int]]] = defaultdict(list)
        for stay, offset in zip(layout.stays, layout.offsets, strict=True):
            self._held[stay.tensor, stay.tier].append((stay.start, stay.end, offset))

    def find(self, tensor: str, tier: Tier, kernel: int) -> Address | None:
        """The address of the stay that holds during `kernel`."""
        for start, end, offset in self._held[tensor, tier]:
            if start <= kernel < end:
                return Address(tier, offset)
        return None

    def require(self, tensor: str, tier: Tier, kernel: int) -> Address:
        """As `find`, but it must exist."""
        address = self.find(tensor, tier, kernel)
        if address is None:
            raise ValueError(f"plan keeps '{tensor}' out of {tier} memory at kernel {kernel}, where it is needed")
        return address


def _steps(graph: Graph, plan: Plan, addresses: _Addresses) -> Iterator[Step]:
    moves: dict[int, list[Move]] = defaultdict(list)
    for move in plan.moves:
        moves[move.before].append(move)
    for index, kernel in enumerate(graph.kernels):
        for move in sorted(moves[index], key=lambda move: (move.destination is Tier.DRAM, move.tensor)):
            yield _move_step(graph, move, addresses)
        tensors = [operand.tensor for operand in kernel.operands]
        yield KernelStep(index, tuple(_operand(graph, tensor, index, addresses) for tensor in tensors))


def _move_step(graph: Graph, move: Move, addresses: _Addresses) -> MoveStep:
    to_slow = move.destination is Tier.PMEM
    source_tier = Tier.DRAM if to_slow else Tier.PMEM
    source = addresses.require(move.tensor, source_tier, move.before - 1 if to_slow else move.before)
    destination = addresses.require(move.tensor, move.destination, move.before)
    return MoveStep(move.tensor, graph.by_name[move.tensor].size_bytes, source, destination)


def _operand(graph: Graph, tensor: str, kernel: int, addresses: _Addresses) -> Address:
    if not graph.by_name[tensor].is_movable:
        return ARGUMENT
    fast = addresses.find(tensor, Tier.DRAM, kernel)
    return fast or addresses.require(tensor, Tier.PMEM, kernel)
