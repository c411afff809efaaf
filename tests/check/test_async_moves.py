"""The checker follows copies beside kernels: where their ends are, when they may be used, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
import small_step
from faults import refused

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import Residence
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import pack
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tier, configuration
from autotm.model.limit import Counts, Limit
from autotm.model.plan import Move, Plan, Status, Stay
from autotm.model.program import Instruction, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep

FAST, SLOW = Tier.FAST, Tier.SLOW

FLYING = (
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

ARRIVING = (
    [Stay("act2", SLOW, 2, 5), Stay("act2", FAST, 3, 7)],
    [Move("act2", FAST, 5, since=3)],
)
"""Kernel 3 reads `act2` in slow memory while it is copied to fast memory."""

Parts = tuple[list[Stay], list[Move]]


def plan_of(graph: Graph, parts: Parts, slow: dict[int, set[str]] | None = None) -> Plan:
    """The tensors named in `parts` as they say, all others in fast memory; `slow` operands by kernel."""
    stays, moves = parts
    named = {stay.tensor for stay in stays}
    others = [Stay(t.name, FAST, t.live.start, t.live.stop) for t in graph.movable if t.name not in named]
    configurations = tuple(
        configuration(graph, kernel, (slow or {}).get(index, set())) for index, kernel in enumerate(graph.kernels)
    )
    return Plan(
        hash_of(graph), "by hand", Limit(slow=0, fast=1), graph.peak_live_bytes, Counts.INTERMEDIATES,
        tuple(sorted([*stays, *others], key=lambda stay: (stay.start, stay.tensor, stay.tier))),
        tuple(sorted(moves, key=lambda move: (move.before, not move.is_asynchronous, move.destination is FAST))),
        configurations, 1.0, 1.0, Status.NOT_OPTIMIZED, 0.0, 0.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_step.graph()


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return plan_of(graph, FLYING)


@pytest.fixture(scope="module")
def program(graph: Graph, plan: Plan) -> Program:
    return compile_program(graph, plan, pack(graph, plan))


def test_async_moves_are_legal_and_kernels_use_the_source_meanwhile(graph: Graph, plan: Plan, program: Program) -> None:
    Residence(graph, plan).check()
    check_program(graph, plan, program)
    assert not Residence(graph, plan).slow_operands(3)
    arriving = plan_of(graph, ARRIVING, {2: {"act2"}, 3: {"act2"}})
    residence = Residence(graph, arriving)
    residence.check()
    assert [bool(residence.slow_operands(kernel)) for kernel in range(8)] == [False, False, True, True, *[False] * 4]
    made = compile_program(graph, arriving, pack(graph, arriving))
    check_program(graph, arriving, made)
    uses = {
        step.kernel: step.addresses[[o.tensor for o in graph.kernels[step.kernel].operands].index("act2")].tier
        for step in made.steps
        if isinstance(step, KernelStep) and step.kernel in {2, 3, 6}
    }
    assert uses == {2: SLOW, 3: SLOW, 6: FAST}


BROKEN_PLANS: list[tuple[str, list[Stay], list[Move], Fault]] = [
    ("source ends early", [Stay("hidden", FAST, 0, 2)], [], Fault.NO_SOURCE),
    ("destination begins late", [Stay("hidden", SLOW, 3, 5)], [], Fault.NO_DESTINATION),
    ("slow source ends before the read is complete", [Stay("hidden", SLOW, 2, 4)], [], Fault.NO_SOURCE),
    ("destination ends when the copy is complete", [Stay("hidden", FAST, 4, 5)], [], Fault.NO_DESTINATION),
    ("read before the write is complete", [], [Move("hidden", SLOW, 5, since=2)], Fault.NO_SOURCE),
    ("write before the tensor is", [], [Move("hidden", SLOW, 3, since=0)], Fault.BAD_SPAN),
    ("arrival after the last use", [], [Move("hidden", FAST, 7, since=4)], Fault.BAD_SPAN),
    ("two moves fill one stay", [], [Move("hidden", FAST, 4)], Fault.ORDER),
]


@pytest.mark.parametrize(("name", "stays", "moves", "fault"), BROKEN_PLANS, ids=[case[0] for case in BROKEN_PLANS])
def test_each_defect_of_a_plan_is_named(
    graph: Graph, name: str, stays: list[Stay], moves: list[Move], fault: Fault
) -> None:
    kept_stays, kept_moves = list(FLYING[0]), list(FLYING[1])
    for stay in stays:
        near = min(
            (old for old in kept_stays if (old.tensor, old.tier) == (stay.tensor, stay.tier)),
            key=lambda old: abs(old.start - stay.start),
        )
        kept_stays[kept_stays.index(near)] = stay
    for move in moves:
        if "two moves" not in name:
            same = [old for old in kept_moves if (old.tensor, old.destination) == (move.tensor, move.destination)]
            kept_moves.remove(same[0])
        kept_moves.append(move)
    with refused(fault):
        Residence(graph, plan_of(graph, (kept_stays, kept_moves))).check()


def test_a_move_cannot_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="starts before kernel 5, ends before 5"):
        Move("hidden", SLOW, 5, since=5)


def of_type(program: Program, kind: type[Instruction]) -> list[int]:
    return [index for index, step in enumerate(program.steps) if isinstance(step, kind)]


def without(program: Program, index: int) -> Program:
    return replace(program, steps=(*program.steps[:index], *program.steps[index + 1 :]))


def moved(program: Program, index: int, to: int) -> Program:
    steps = list(program.steps)
    steps.insert(to, steps.pop(index))
    return replace(program, steps=tuple(steps))


def start_after_its_kernel(program: Program) -> Program:
    start = of_type(program, StartMoveStep)[0]
    return moved(program, start, start + 1)


def wait_after_its_kernel(program: Program) -> Program:
    wait = of_type(program, WaitMoveStep)[0]
    return moved(program, wait, next(i for i in of_type(program, KernelStep) if i > wait))


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
    kept = without(program, wait)
    return replace(kept, steps=(*kept.steps[:start], blocking, *kept.steps[start + 1 :]))


DEFECTS: list[tuple[Callable[[Program], Program], Fault]] = [
    (lambda p: without(p, of_type(p, WaitMoveStep)[0]), Fault.STEPS),
    (lambda p: without(p, of_type(p, StartMoveStep)[0]), Fault.STEPS),
    (start_after_its_kernel, Fault.STEPS),
    (wait_after_its_kernel, Fault.STEPS),
    (start_before_another_wait, Fault.STEPS),
    (as_blocking, Fault.STEPS),
]


@pytest.mark.parametrize(("break_it", "fault"), DEFECTS)
def test_each_defect_of_a_program_is_named(
    graph: Graph, plan: Plan, program: Program, break_it: Callable[[Program], Program], fault: Fault
) -> None:
    with refused(fault):
        check_program(graph, plan, break_it(program))


def test_what_happens_between_two_kernels_has_one_order(graph: Graph) -> None:
    """Before kernel 5: `act2` has left, `error` leaves, `hidden` comes back, and `error` starts to."""
    stays = [
        Stay("hidden", FAST, 0, 3), Stay("hidden", SLOW, 3, 6), Stay("hidden", FAST, 5, 6),
        Stay("act2", FAST, 2, 5), Stay("act2", SLOW, 3, 7),
        Stay("error", FAST, 4, 5), Stay("error", SLOW, 5, 7), Stay("error", FAST, 5, 7),
    ]  # fmt: skip
    moves = [Move("hidden", SLOW, 3), Move("act2", SLOW, 5, since=3), Move("error", SLOW, 5), Move("hidden", FAST, 5)]
    crowded = plan_of(graph, (stays, [*moves, Move("error", FAST, 6, since=5)]), {5: {"error"}, 6: {"act2"}})
    made = compile_program(graph, crowded, pack(graph, crowded))
    before, after = (of_type(made, KernelStep)[kernel] for kernel in (4, 5))
    right = made.steps[before + 1 : after]
    assert [type(step) for step in right] == [WaitMoveStep, MoveStep, MoveStep, StartMoveStep]
    for order in permutations(right):
        changed = replace(made, steps=(*made.steps[: before + 1], *order, *made.steps[after:]))
        if order == right:
            check_program(graph, crowded, changed)
        else:
            with refused(Fault.STEPS):
                check_program(graph, crowded, changed)


def test_bytes_shared_by_stays_that_meet_are_found(graph: Graph, plan: Plan) -> None:
    """Every pair of stays that hold at the same time is once put on the same bytes: none of these passes."""
    layout = pack(graph, plan)
    size = {stay: graph.by_name[stay.tensor].allocated_bytes for stay in plan.stays}
    faults = []
    for (i, one), (j, other) in permutations(enumerate(plan.stays), 2):
        meet = one.tier is other.tier and one.start < other.end and other.start < one.end
        if not meet or size[one] < size[other]:
            continue
        offsets = list(layout.offsets)
        offsets[j] = offsets[i]
        wrong = compile_program(graph, plan, replace(layout, offsets=tuple(offsets)))
        with pytest.raises(FaultError) as caught:
            check_program(graph, plan, wrong)
        faults.append(caught.value.fault)
    assert len(faults) > 20
    assert {Fault.OVERLAP, Fault.IN_FLIGHT} <= set(faults) <= {Fault.OVERLAP, Fault.STALE, Fault.IN_FLIGHT}


def test_reading_what_is_being_copied_is_found(graph: Graph) -> None:
    """A program, and a plan that agrees with it, in which kernel 3 reads the destination of the copy under way."""
    arriving = plan_of(graph, ARRIVING, {2: {"act2"}})
    made = compile_program(graph, arriving, pack(graph, arriving))
    start = next(step for step in made.steps if isinstance(step, StartMoveStep))
    steps = [
        replace(step, addresses=tuple(start.destination if a == start.source else a for a in step.addresses))
        if isinstance(step, KernelStep) and step.kernel == 3
        else step
        for step in made.steps
    ]
    with refused(Fault.IN_FLIGHT):
        check_program(graph, arriving, replace(made, steps=tuple(steps)))
