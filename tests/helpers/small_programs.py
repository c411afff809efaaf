"""Plans and programs for `small_step`, made by hand: no solver and no packing between a test and what it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tensor, Tier, all_fast
from autotm.model.limit import Counts, Limit
from autotm.model.plan import Plan, Status
from autotm.model.profile import Profile, Timing
from autotm.model.program import Address, Instruction, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep


@dataclass(frozen=True)
class Trip:
    """A tensor leaves fast memory just before kernel `leave` and is back just before kernel `back`.

    With `left` and `call` the copies are asynchronous: out from `leave` to `left`, back from `call` to `back`.
    """

    leave: int
    back: int
    left: int | None = None
    call: int | None = None


def plan(graph: Graph, optimizer: str = "by hand") -> Plan:
    """A plan that says nothing of use but what a record copies from it."""
    configurations = tuple(all_fast(kernel) for kernel in graph.kernels)
    return Plan(
        hash_of(graph), optimizer, Limit.parse("1:1"), 12_345, Counts.INTERMEDIATES, (), (), configurations,
        2_000_000.0, 1_500_000.0, Status.OPTIMAL, 0.25, 0.5,
    )  # fmt: skip


def profile(graph: Graph) -> Profile:
    """Every implementation of every kernel takes 1 ms with all operands in fast memory."""
    kernels = [kernel.computed_by(name) for kernel in graph.kernels for name in kernel.implementations]
    timing = Timing(1_000_000, 1_000_000, 1_000_000, 1_000_000, 7)
    return Profile(hash_of(graph), {(k.identity, k.implementation, all_fast(k)): timing for k in kernels}, {})


def program(graph: Graph, slow: frozenset[str] = frozenset(), trips: dict[str, Trip] | None = None) -> Program:
    """A program with `slow` tensors in slow memory and the others fast; fast memory is reused as tensors die."""
    trips = trips or {}
    fast, fast_bytes = _reuse(graph, slow)
    in_slow = [tensor for tensor in graph.movable if tensor.name in slow or tensor.name in trips]
    *starts, slow_bytes = accumulate((tensor.allocated_bytes for tensor in in_slow), initial=0)
    slow_at = {tensor.name: start for tensor, start in zip(in_slow, starts, strict=True)}
    steps: list[Instruction] = []
    for index, kernel in enumerate(graph.kernels):
        for number, (name, trip) in enumerate(trips.items()):
            here, there = Address(Tier.FAST, fast[name]), Address(Tier.SLOW, slow_at[name])
            steps += _moves(index, trip, name, graph.by_name[name].size_bytes, here, there, number)
        addresses = (
            Address(Tier.SLOW, slow_at[name]) if name in slow else Address(Tier.FAST, fast.get(name))
            for name in (operand.tensor for operand in kernel.operands)
        )
        steps.append(KernelStep(index, tuple(addresses)))
    of = plan(graph)
    return Program(
        hash_of(graph), hash_of(of), of.optimizer, of.limit, of.dram_limit_bytes, fast_bytes, slow_bytes, tuple(steps)
    )


def _moves(
    index: int, trip: Trip, name: str, size: int, here: Address, there: Address, number: int
) -> list[MoveStep | StartMoveStep | WaitMoveStep]:
    """Moves of a trip just before kernel `index`."""
    out, back = 2 * number, 2 * number + 1
    if trip.left is not None:
        at = [
            (trip.left, WaitMoveStep(out)),
            (trip.back, WaitMoveStep(back)),
            (trip.leave, StartMoveStep(out, name, size, here, there)),
            (trip.call, StartMoveStep(back, name, size, there, here)),
        ]
    else:
        at = [(trip.leave, MoveStep(name, size, here, there)), (trip.back, MoveStep(name, size, there, here))]
    return [step for place, step in at if place == index]


def with_address(program: Program, kernel: int, slot: int, address: Address) -> Program:
    """The same program with one operand of one kernel somewhere else."""

    def changed(step: Instruction) -> Instruction:
        if not isinstance(step, KernelStep) or step.kernel != kernel:
            return step
        return replace(step, addresses=(*step.addresses[:slot], address, *step.addresses[slot + 1 :]))

    return replace(program, steps=tuple(map(changed, program.steps)))


def _reuse(graph: Graph, slow: frozenset[str]) -> tuple[dict[str, int], int]:
    """First fit in order of production."""
    placed: list[tuple[Tensor, int]] = []
    for tensor in sorted(graph.movable, key=lambda t: t.live.start):
        if tensor.name in slow:
            continue
        busy = sorted(
            (at, at + other.allocated_bytes)
            for other, at in placed
            if other.live.start < tensor.live.stop and tensor.live.start < other.live.stop
        )
        offset = 0
        for start, end in busy:
            if offset + tensor.allocated_bytes <= start:
                break
            offset = max(offset, end)
        placed.append((tensor, offset))
    return {t.name: at for t, at in placed}, max((at + t.allocated_bytes for t, at in placed), default=0)
