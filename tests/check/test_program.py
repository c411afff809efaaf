"""The checker rejects each kind of broken program for its own reason, and follows asynchronous moves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import pytest
import small_step
from faults import refused
from random_graphs import random_case

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import Residence
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import layout_of
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tier, configuration
from autotm.model.limit import Counts, Limit
from autotm.model.plan import Move, Plan, Status, Stay
from autotm.model.program import Address, Instruction, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

FAST, SLOW = Tier.FAST, Tier.SLOW

Parts = tuple[list[Stay], list[Move]]

FLYING: Parts = (
    [
        Stay("hidden", FAST, 0, 3), Stay("hidden", SLOW, 2, 5), Stay("hidden", FAST, 4, 6),
        Stay("act2", FAST, 2, 5), Stay("act2", SLOW, 3, 6), Stay("act2", FAST, 5, 7),
    ],
    [
        Move("hidden", SLOW, 3, since=2), Move("hidden", FAST, 5, since=4),
        Move("act2", SLOW, 5, since=3), Move("act2", FAST, 6, since=5),
    ],
)  # fmt: skip
"""`hidden` is used by kernels 0, 1 and 5, `act2` by 2, 3 and 6: kernel 3 reads it while it is copied to slow memory."""

ARRIVING: Parts = ([Stay("act2", SLOW, 2, 5), Stay("act2", FAST, 3, 7)], [Move("act2", FAST, 5, since=3)])
"""Kernel 3 reads `act2` in slow memory while it is copied to fast memory."""


@dataclass(frozen=True)
class Packed:
    """A plan and its program, which the checker accepts."""

    graph: Graph
    plan: Plan

    @cached_property
    def program(self) -> Program:
        program = compile_program(self.graph, self.plan, layout_of(self.graph, self.plan))
        check_program(self.graph, self.plan, program)
        return program


def plan_of(parts: Parts, slow: dict[int, set[str]] | None = None) -> Packed:
    """A small step's tensors that `parts` names as they say, all others in fast memory; `slow` operands by kernel."""
    graph, (stays, moves) = small_step.graph(), parts
    named = {stay.tensor for stay in stays}
    others = [Stay(t.name, FAST, t.live.start, t.live.stop) for t in graph.movable if t.name not in named]
    configurations = tuple(
        configuration(graph, kernel, (slow or {}).get(index, set())) for index, kernel in enumerate(graph.kernels)
    )
    plan = Plan(
        hash_of(graph), "by hand", Limit(slow=0, fast=1), graph.peak_live_bytes, Counts.INTERMEDIATES,
        tuple(sorted([*stays, *others], key=lambda stay: stay.order)),
        tuple(sorted(moves, key=lambda move: (move.before, not move.is_asynchronous, move.destination is FAST))),
        configurations, 1.0, 1.0, Status.NOT_OPTIMIZED, 0.0, 0.0,
    )  # fmt: skip
    return Packed(graph, plan)


@pytest.fixture(scope="module")
def blocking() -> Packed:
    case = random_case(12, kernels=10)
    return Packed(case.graph, solve(*case, "synchronous", Limit(2, 1), SolveOptions(gap=0.0)))


@pytest.fixture(scope="module")
def flying() -> Packed:
    return plan_of(FLYING)


def of_type(program: Program, kind: type[Instruction], tier: Tier | None = None) -> list[int]:
    """Places of steps of a kind, of moves to that tier."""
    steps = ((index, step) for index, step in enumerate(program.steps) if isinstance(step, kind))
    return [index for index, step in steps if tier is None or step.destination.tier is tier]


def without(program: Program, index: int) -> Program:
    return replace(program, steps=(*program.steps[:index], *program.steps[index + 1 :]))


def moved(program: Program, index: int, to: int) -> Program:
    steps = list(program.steps)
    steps.insert(to, steps.pop(index))
    return replace(program, steps=tuple(steps))


def changed(program: Program, index: int, step: Instruction) -> Program:
    return replace(program, steps=(*program.steps[:index], step, *program.steps[index + 1 :]))


def in_pool(address: Address) -> bool:
    return address.offset is not None


def readdressed(
    program: Program, change: Callable[[Address], Address], is_meant: Callable[[Address], bool] = in_pool
) -> Program:
    """The first operand that is meant gets another address, in all slots of its kernel."""
    index, old = next(
        (index, old)
        for index in of_type(program, KernelStep)
        for old in program.steps[index].addresses
        if is_meant(old)
    )
    addresses = tuple(change(old) if address == old else address for address in program.steps[index].addresses)
    return changed(program, index, replace(program.steps[index], addresses=addresses))


def shifted(program: Program, by: int) -> Program:
    return readdressed(program, lambda address: replace(address, offset=address.offset + by))


def two_on_one_place(program: Program) -> Program:
    """Two slow operands of one kernel are put on the same bytes."""
    for index in of_type(program, KernelStep):
        slow = list(dict.fromkeys(a for a in program.steps[index].addresses if in_pool(a) and a.tier is SLOW))
        if len(slow) > 1:
            addresses = tuple(slow[0] if a == slow[1] else a for a in program.steps[index].addresses)
            return changed(program, index, replace(program.steps[index], addresses=addresses))
    raise AssertionError


def with_write(program: Program, changes: Callable[[MoveStep], dict[str, object]]) -> Program:
    """The first move to slow memory is another."""
    index = of_type(program, MoveStep, SLOW)[0]
    return changed(program, index, replace(program.steps[index], **changes(program.steps[index])))


def late(program: Program, kind: type[Instruction]) -> Program:
    """A step after the kernel that it was to precede."""
    index = of_type(program, kind)[0]
    return moved(program, index, next(kernel for kernel in of_type(program, KernelStep) if kernel > index))


def fewer_addresses(program: Program) -> Program:
    index = next(i for i in of_type(program, KernelStep) if any(map(in_pool, program.steps[i].addresses)))
    return changed(program, index, replace(program.steps[index], addresses=program.steps[index].addresses[:-1]))


def start_before_another_wait(program: Program) -> Program:
    """Before kernel 5, hidden's read and act2's write are waited for, then act2's read starts."""
    start = of_type(program, StartMoveStep)[-1]
    assert isinstance(program.steps[start - 1], WaitMoveStep)
    return moved(program, start, start - 1)


def as_blocking(program: Program) -> Program:
    """The same copy at the same place, but the step waits for it."""
    start, wait = of_type(program, StartMoveStep)[0], of_type(program, WaitMoveStep)[0]
    step = program.steps[start]
    blocking = MoveStep(step.tensor, step.size_bytes, step.source, step.destination)
    return changed(without(program, wait), start, blocking)


DEFECTS: list[tuple[str, Callable[[Program], Program], Fault]] = [
    ("blocking", lambda p: replace(p, graph_hash="0"), Fault.OTHER_GRAPH),
    ("blocking", lambda p: replace(p, plan_hash="0"), Fault.OTHER_PLAN),
    ("blocking", lambda p: replace(p, limit=Limit.parse("1:1")), Fault.OTHER_PLAN),
    ("blocking", lambda p: replace(p, optimizer="static"), Fault.OTHER_PLAN),
    ("blocking", lambda p: replace(p, dram_limit_bytes=10**9), Fault.OTHER_PLAN),
    ("blocking", lambda p: replace(p, fast_bytes=p.dram_limit_bytes + 64), Fault.LIMIT),
    ("blocking", lambda p: replace(p, fast_bytes=64), Fault.POOL),
    ("blocking", lambda p: replace(p, slow_bytes=0), Fault.POOL),
    ("blocking", lambda p: shifted(p, 32), Fault.ALIGNMENT),
    ("blocking", lambda p: shifted(p, -64 * 10**6), Fault.POOL),
    ("blocking", lambda p: shifted(p, 64 * 10**6), Fault.POOL),
    ("blocking", lambda p: readdressed(p, lambda a: Address(FAST if a.tier is SLOW else SLOW, 0)), Fault.ADDRESS),
    (
        "blocking",
        lambda p: readdressed(p, lambda _: Address(FAST, None), lambda a: in_pool(a) and a.tier is FAST),
        Fault.ADDRESS,
    ),
    ("blocking", lambda p: readdressed(p, lambda _: Address(FAST, 0), lambda a: not in_pool(a)), Fault.ADDRESS),
    ("blocking", lambda p: with_write(p, lambda step: {"size_bytes": step.size_bytes + 64}), Fault.ADDRESS),
    ("blocking", lambda p: with_write(p, lambda step: {"source": step.destination}), Fault.ADDRESS),
    ("blocking", two_on_one_place, Fault.OVERLAP),
    (
        "blocking",
        lambda p: with_write(p, lambda step: {"source": Address(FAST, 0 if step.source.offset else 64)}),
        Fault.STALE,
    ),
    ("blocking", lambda p: without(p, len(p.steps) - 1), Fault.STEPS),
    ("blocking", lambda p: late(p, KernelStep), Fault.STEPS),
    ("blocking", lambda p: without(p, of_type(p, MoveStep, FAST)[0]), Fault.STEPS),
    ("blocking", lambda p: late(p, MoveStep), Fault.STEPS),
    ("blocking", fewer_addresses, Fault.SLOTS),
    ("flying", lambda p: without(p, of_type(p, WaitMoveStep)[0]), Fault.STEPS),
    ("flying", lambda p: without(p, of_type(p, StartMoveStep)[0]), Fault.STEPS),
    ("flying", lambda p: late(p, StartMoveStep), Fault.STEPS),
    ("flying", lambda p: late(p, WaitMoveStep), Fault.STEPS),
    ("flying", start_before_another_wait, Fault.STEPS),
    ("flying", as_blocking, Fault.STEPS),
]


@pytest.mark.parametrize(("name", "break_it", "fault"), DEFECTS, ids=lambda value: getattr(value, "name", None))
def test_each_defect_is_named(
    request: pytest.FixtureRequest, name: str, break_it: Callable[[Program], Program], fault: Fault
) -> None:
    packed: Packed = request.getfixturevalue(name)
    with refused(fault):
        check_program(packed.graph, packed.plan, break_it(packed.program))


def needed_until(plan: Plan, stay: Stay) -> int:
    """A slow stay that ends as the source of a read is held through the kernel, but needed until the read only."""
    is_source = stay.tier is SLOW and Move(stay.tensor, FAST, stay.end - 1) in plan.moves
    return stay.end - is_source


@pytest.mark.parametrize(
    ("name", "possible"),
    [("blocking", {Fault.OVERLAP, Fault.STALE}), ("flying", {Fault.OVERLAP, Fault.STALE, Fault.IN_FLIGHT})],
)
def test_bytes_reused_too_early_are_found(
    request: pytest.FixtureRequest, name: str, possible: Collection[Fault]
) -> None:
    """Every pair of stays that are needed at the same time is once put on the same bytes: none of these passes."""
    packed: Packed = request.getfixturevalue(name)
    graph, plan, faults = packed.graph, packed.plan, []
    last = {stay: needed_until(plan, stay) for stay in plan.stays}
    layout = layout_of(graph, plan)
    size = {stay: graph.by_name[stay.tensor].allocated_bytes for stay in plan.stays}
    for (i, one), (j, other) in permutations(enumerate(plan.stays), 2):
        meet = one.tier is other.tier and one.start < last[other] and other.start < last[one]
        if not meet or size[one] < size[other]:
            continue
        offsets = list(layout.offsets)
        offsets[j] = offsets[i]
        with pytest.raises(FaultError) as caught:
            check_program(graph, plan, compile_program(graph, plan, replace(layout, offsets=tuple(offsets))))
        faults.append(caught.value.fault)
    assert len(faults) > 20
    assert set(faults) <= set(possible)
    assert Fault.OVERLAP in faults
    assert name == "blocking" or Fault.IN_FLIGHT in faults


def test_the_pool_may_exceed_a_limit_that_is_none() -> None:
    case = random_case(12, kernels=10)
    unlimited = Packed(case.graph, solve(*case, "all-fast", Limit(0, 1)))
    larger = replace(unlimited.program, fast_bytes=unlimited.plan.dram_limit_bytes + 4096)
    check_program(case.graph, unlimited.plan, larger)
    same = replace(unlimited.plan, limit=Limit.parse(f"{unlimited.plan.dram_limit_bytes}B"))
    with refused(Fault.LIMIT):
        check_program(case.graph, same, replace(larger, limit=same.limit, plan_hash=hash_of(same)))


def test_async_moves_are_legal_and_kernels_use_the_source_meanwhile(flying: Packed) -> None:
    Residence(flying.graph, flying.plan).check()
    assert not Residence(flying.graph, flying.plan).slow_operands(3)
    arriving = plan_of(ARRIVING, {2: {"act2"}, 3: {"act2"}})
    residence = Residence(arriving.graph, arriving.plan)
    residence.check()
    assert [bool(residence.slow_operands(kernel)) for kernel in range(8)] == [False, False, True, True, *[False] * 4]
    uses = {
        step.kernel: step.addresses[[o.tensor for o in arriving.graph.kernels[step.kernel].operands].index("act2")].tier
        for step in arriving.program.steps
        if isinstance(step, KernelStep) and step.kernel in {2, 3, 6}
    }
    assert uses == {2: SLOW, 3: SLOW, 6: FAST}


@pytest.mark.parametrize(
    ("stays", "moves", "fault"),
    [
        pytest.param([Stay("hidden", FAST, 0, 2)], [], Fault.NO_SOURCE, id="source ends early"),
        pytest.param([Stay("hidden", SLOW, 3, 5)], [], Fault.NO_DESTINATION, id="destination begins late"),
        pytest.param([Stay("hidden", SLOW, 2, 4)], [], Fault.NO_SOURCE, id="source ends before the read is complete"),
        pytest.param([Stay("hidden", FAST, 4, 5)], [], Fault.NO_DESTINATION, id="destination ends with the copy"),
        pytest.param([], [Move("hidden", SLOW, 5, since=2)], Fault.NO_SOURCE, id="read before the write is complete"),
        pytest.param([], [Move("hidden", SLOW, 3, since=0)], Fault.BAD_SPAN, id="write before the tensor is"),
        pytest.param([], [Move("hidden", FAST, 7, since=4)], Fault.BAD_SPAN, id="arrival after the last use"),
        pytest.param([], [Move("hidden", FAST, 4), FLYING[1][1]], Fault.ORDER, id="two moves fill one stay"),
    ],
)
def test_each_defect_of_async_moves_is_named(stays: list[Stay], moves: list[Move], fault: Fault) -> None:
    """The stays and moves take the place of those nearest to them."""
    all_stays, all_moves = list(FLYING[0]), list(FLYING[1])
    for stay in stays:
        same = (old for old in all_stays if (old.tensor, old.tier) == (stay.tensor, stay.tier))
        near = min(same, key=lambda old: abs(old.start - stay.start))
        all_stays[all_stays.index(near)] = stay
    for move in moves[:1]:
        same_way = (old for old in all_moves if (old.tensor, old.destination) == (move.tensor, move.destination))
        all_moves.remove(next(same_way))
    broken = plan_of((all_stays, all_moves + moves))
    with refused(fault):
        Residence(broken.graph, broken.plan).check()


def test_a_move_cannot_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="starts before kernel 5, ends before 5"):
        Move("hidden", SLOW, 5, since=5)


def test_what_happens_between_two_kernels_has_one_order() -> None:
    """Before kernel 5: `act2` has left, `error` leaves, `hidden` comes back, and `error` starts to."""
    stays = [
        Stay("hidden", FAST, 0, 3), Stay("hidden", SLOW, 3, 6), Stay("hidden", FAST, 5, 6),
        Stay("act2", FAST, 2, 5), Stay("act2", SLOW, 3, 7),
        Stay("error", FAST, 4, 5), Stay("error", SLOW, 5, 7), Stay("error", FAST, 5, 7),
    ]  # fmt: skip
    moves = [Move("hidden", SLOW, 3), Move("act2", SLOW, 5, since=3), Move("error", SLOW, 5), Move("hidden", FAST, 5)]
    crowded = plan_of((stays, [*moves, Move("error", FAST, 6, since=5)]), {5: {"error"}, 6: {"act2"}})
    program = crowded.program
    before, after = (of_type(program, KernelStep)[kernel] for kernel in (4, 5))
    right = program.steps[before + 1 : after]
    assert [type(step) for step in right] == [WaitMoveStep, MoveStep, MoveStep, StartMoveStep]
    for order in set(permutations(right)) - {right}:
        wrong = replace(program, steps=(*program.steps[: before + 1], *order, *program.steps[after:]))
        with refused(Fault.STEPS):
            check_program(crowded.graph, crowded.plan, wrong)


def test_reading_what_is_being_copied_is_found() -> None:
    """A program, and a plan that agrees with it, in which kernel 3 reads the destination of the copy under way."""
    arriving = plan_of(ARRIVING, {2: {"act2"}})
    program = compile_program(arriving.graph, arriving.plan, layout_of(arriving.graph, arriving.plan))
    start, kernel = program.steps[of_type(program, StartMoveStep)[0]], of_type(program, KernelStep)[3]
    addresses = tuple(start.destination if a == start.source else a for a in program.steps[kernel].addresses)
    wrong = changed(program, kernel, replace(program.steps[kernel], addresses=addresses))
    with refused(Fault.IN_FLIGHT):
        check_program(arriving.graph, arriving.plan, wrong)
