"""The checker rejects each kind of broken plan for its own reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults import refused
from random_graphs import Case, random_case, with_engines

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_addresses, check_plan
from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Certificate, KernelPrices, Move, Plan, Status, Stay
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, solve_and_pack


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(12, kernels=10)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    """A synchronous plan with both kinds of moves, slow and fast births."""
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1), SolveOptions(gap=0.0))
    assert {move.destination for move in plan.moves} == set(Tier)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


def with_stays(plan: Plan, stays: list[Stay]) -> Plan:
    return replace(plan, stays=tuple(sorted(stays, key=lambda stay: (stay.start, stay.tensor, stay.tier))))


def write(plan: Plan) -> Move:
    return next(move for move in plan.moves if move.destination is Tier.SLOW)


def read(plan: Plan) -> Move:
    return next(move for move in plan.moves if move.destination is Tier.FAST)


def stay_at(plan: Plan, tensor: str, tier: Tier, kernel: int) -> Stay:
    return next(s for s in plan.stays if (s.tensor, s.tier) == (tensor, tier) and s.start <= kernel < s.end)


def drop_stay(plan: Plan) -> Plan:
    """A tensor that never moves is forgotten."""
    moved = {move.tensor for move in plan.moves}
    lost = next(stay for stay in plan.stays if stay.tensor not in moved)
    return with_stays(plan, [stay for stay in plan.stays if stay != lost])


def cut_read_source(plan: Plan) -> Plan:
    """The slow copy ends just before the read that needs it."""
    move = read(plan)
    source = stay_at(plan, move.tensor, Tier.SLOW, move.before)
    assert source.start < move.before
    return with_stays(plan, [replace(s, end=move.before) if s == source else s for s in plan.stays])


def cut_write_source(plan: Plan) -> Plan:
    """The fast stay starts too late to be read by the write."""
    move = write(plan)
    source = stay_at(plan, move.tensor, Tier.FAST, move.before - 1)
    return with_stays(plan, [s for s in plan.stays if s != source])


def late_destination(plan: Plan) -> Plan:
    move = write(plan)
    kept = [s for s in plan.stays if not (s.tensor == move.tensor and s.tier is Tier.SLOW)]
    return with_stays(plan, kept)


def drop_write(plan: Plan) -> Plan:
    return replace(plan, moves=tuple(move for move in plan.moves if move != write(plan)))


def double_stay(plan: Plan) -> Plan:
    stay = plan.stays[0]
    return with_stays(plan, [*plan.stays, stay])


def born_twice(plan: Plan) -> Plan:
    moved = {move.tensor for move in plan.moves}
    stay = next(stay for stay in plan.stays if stay.tensor not in moved)
    other = Tier.FAST if stay.tier is Tier.SLOW else Tier.SLOW
    return with_stays(plan, [*plan.stays, replace(stay, tier=other)])


def outside_life(plan: Plan) -> Plan:
    stay = plan.stays[-1]
    return with_stays(plan, [*plan.stays[:-1], replace(stay, end=stay.end + 1)])


def unknown_stay(plan: Plan) -> Plan:
    return with_stays(plan, [*plan.stays, Stay("weight", Tier.FAST, 0, 1)])


def unknown_move(plan: Plan) -> Plan:
    moves = [*plan.moves, Move("nothing", Tier.FAST, 1)]
    return replace(plan, moves=tuple(sorted(moves, key=lambda move: (move.before, move.destination is Tier.FAST))))


def move_before_birth(plan: Plan) -> Plan:
    moves = [Move(plan.stays[0].tensor, Tier.SLOW, 0), *plan.moves]
    return replace(plan, moves=tuple(moves))


def flip_configuration(plan: Plan) -> Plan:
    index = next(i for i, c in enumerate(plan.configurations) if "P" in c)
    flipped = plan.configurations[index].replace("P", "D", 1)
    return replace(plan, configurations=(*plan.configurations[:index], flipped, *plan.configurations[index + 1 :]))


def all_in_fast_memory(plan: Plan) -> Plan:
    spans: dict[str, tuple[int, int]] = {}
    for stay in plan.stays:
        start, end = spans.get(stay.tensor, (stay.start, stay.end))
        spans[stay.tensor] = (min(start, stay.start), max(end, stay.end))
    stays = [Stay(tensor, Tier.FAST, start, end) for tensor, (start, end) in spans.items()]
    configurations = tuple(c.replace("P", "D") for c in plan.configurations)
    return replace(with_stays(plan, stays), moves=(), configurations=configurations)


def as_static(plan: Plan) -> Plan:
    return replace(plan, optimizer="static")


def as_all_slow(plan: Plan) -> Plan:
    return replace(all_in_fast_memory(plan), optimizer="all-slow")


DEFECTS: list[tuple[Callable[[Plan], Plan], Fault]] = [
    (drop_stay, Fault.NOT_HELD),
    (cut_read_source, Fault.NO_SOURCE),
    (cut_write_source, Fault.NO_SOURCE),
    (late_destination, Fault.NO_DESTINATION),
    (drop_write, Fault.NO_ORIGIN),
    (double_stay, Fault.DOUBLE_STAY),
    (born_twice, Fault.BORN_TWICE),
    (outside_life, Fault.BAD_SPAN),
    (move_before_birth, Fault.BAD_SPAN),
    (unknown_stay, Fault.UNKNOWN_TENSOR),
    (unknown_move, Fault.UNKNOWN_TENSOR),
    (lambda plan: replace(plan, stays=plan.stays[::-1]), Fault.ORDER),
    (lambda plan: replace(plan, moves=plan.moves[::-1]), Fault.ORDER),
    (lambda plan: replace(plan, moves=(plan.moves[0], *plan.moves)), Fault.ORDER),
    (flip_configuration, Fault.CONFIGURATION),
    (lambda plan: replace(plan, configurations=plan.configurations[:-1]), Fault.CONFIGURATION),
    (all_in_fast_memory, Fault.LIMIT),
    (lambda plan: replace(plan, dram_limit_bytes=plan.dram_limit_bytes + 1), Fault.LIMIT_BYTES),
    (as_static, Fault.MOVES_FORBIDDEN),
    (as_all_slow, Fault.WRONG_TIER),
    (lambda plan: replace(plan, objective_us=plan.objective_us * 0.999, bound_us=0.0), Fault.OBJECTIVE),
    (lambda plan: replace(plan, objective_us=float("nan")), Fault.OBJECTIVE),
    (lambda plan: replace(plan, bound_us=plan.objective_us * 1.01), Fault.GAP),
    (lambda plan: replace(plan, bound_us=-plan.objective_us), Fault.GAP),
    (lambda plan: replace(plan, bound_us=0.5 * plan.bound_us, status=Status.OPTIMAL), Fault.GAP),
    (lambda plan: replace(plan, certificate=None), Fault.CERTIFICATE),
    (lambda plan: replace(plan, status=Status.NOT_OPTIMIZED), Fault.CERTIFICATE),
    (
        lambda plan: replace(
            plan, certificate=None, status=Status.NOT_OPTIMIZED, bound_us=plan.objective_us, solver_bound_us=None
        ),
        Fault.CERTIFICATE,
    ),
    (lambda plan: replace(plan, certificate=Certificate(KernelPrices((0,), (-1.0,)))), Fault.CERTIFICATE),
    (
        lambda plan: replace(plan, bound_us=0.5 * plan.bound_us, solver_bound_us=1.01 * plan.objective_us),
        Fault.GAP,
    ),
    (lambda plan: replace(plan, solver_bound_us=0.5 * plan.bound_us), Fault.GAP),
    (lambda plan: replace(plan, certificate=Certificate()), Fault.BOUND),
    (lambda plan: replace(plan, graph_hash="0"), Fault.OTHER_GRAPH),
]


@pytest.mark.parametrize(("break_it", "fault"), DEFECTS, ids=lambda value: getattr(value, "name", None))
def test_each_defect_is_named(case: Case, plan: Plan, break_it: Callable[[Plan], Plan], fault: Fault) -> None:
    with refused(fault):
        check_plan(case.graph, case.profile, case.links, break_it(plan))


def test_unknown_optimizer(case: Case, plan: Plan) -> None:
    with pytest.raises(BadInputError, match="unknown optimizer 'statik'; did you mean 'static'"):
        check_plan(case.graph, case.profile, case.links, replace(plan, optimizer="statik"))


def test_restrictions_of_the_machine(case: Case, plan: Plan) -> None:
    with refused(Fault.WRONG_TIER):
        check_plan(case.graph, case.profile, case.links, plan, fast_operands_only=True)


def test_half_a_life_is_no_static_stay(case: Case) -> None:
    static = solve(case.graph, case.profile, case.links, "static", Limit(2, 1))
    stay = next(stay for stay in static.stays if stay.end - stay.start > 1)
    halved = [s for s in static.stays if s != stay] + [replace(stay, end=stay.end - 1)]
    with refused(Fault.NOT_HELD):
        check_plan(case.graph, case.profile, case.links, with_stays(static, halved))


@pytest.mark.parametrize("optimizer", ["static", "synchronous", "asynchronous"])
@pytest.mark.parametrize("gap", [0.99, 0.0])
def test_a_bound_that_is_not_proven_is_refused(optimizer: str, gap: float) -> None:
    """However it was found, a thousandth more is too much, and what the solver claims proves nothing."""
    case = with_engines(random_case(2, kernels=9))
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(2, 1), SolveOptions(gap=gap))
    check_plan(case.graph, case.profile, case.links, plan)
    raised_us = plan.bound_us + 1e-3 * plan.objective_us
    for claim_us in (None, plan.objective_us):
        raised = replace(plan, bound_us=raised_us, status=Status.WITHIN_GAP, solver_bound_us=claim_us)
        with refused(Fault.BOUND if raised_us <= plan.objective_us else Fault.GAP):
            check_plan(case.graph, case.profile, case.links, raised)


LIMIT = Limit(1, 1)


def packed(seed: int) -> tuple[Case, Plan]:
    case = random_case(seed, kernels=12)
    plan, _ = solve_and_pack(case.graph, case.profile, case.links, "synchronous", LIMIT)
    check_plan(case.graph, case.profile, case.links, plan)
    return case, plan


def meet(case: Case, plan: Plan, one: int, other: int) -> bool:
    """Whether two stays share kernels and bytes of a tier."""
    first, second = plan.stays[one], plan.stays[other]
    sizes = [case.graph.by_name[plan.stays[number].tensor].allocated_bytes for number in (one, other)]
    together = first.tier is second.tier and first.start < second.end and second.start < first.end
    low, high = plan.offsets[one], plan.offsets[other]
    return together and low < high + sizes[1] and high < low + sizes[0]


@pytest.mark.parametrize("seed", range(2))  # Each tries hundreds of offsets.
def test_any_other_offset_is_judged_as_by_looking_at_every_pair(seed: int) -> None:
    case, plan = packed(seed)
    refused = 0
    for number, stay in enumerate(plan.stays):
        for offset in {*plan.offsets, plan.offsets[number] + 64}:
            offsets = (*plan.offsets[:number], offset, *plan.offsets[number + 1 :])
            moved = replace(plan, offsets=offsets, dram_limit_bytes=1 << 40)
            if any(meet(case, moved, number, other) for other in range(len(offsets)) if other != number):
                refused += 1
                with pytest.raises(FaultError, match=f"'{stay.tensor}'") as error:
                    check_addresses(case.graph, moved)
                assert error.value.fault is Fault.OVERLAP
            else:
                check_addresses(case.graph, moved)
    assert refused


def test_limit_alignment_and_number_are_kept() -> None:
    case, plan = packed(0)
    fast = next(number for number, stay in enumerate(plan.stays) if stay.tier is Tier.FAST)
    top = plan.dram_limit_bytes // 64 * 64

    def at(offset: int) -> Plan:
        return replace(plan, offsets=(*plan.offsets[:fast], offset, *plan.offsets[fast + 1 :]))

    for broken, fault in (
        (at(top), Fault.LIMIT),
        (at(plan.offsets[fast] + 8), Fault.ALIGNMENT),
        (at(-64), Fault.ALIGNMENT),
        (replace(plan, offsets=plan.offsets[1:]), Fault.ADDRESS),
    ):
        with refused(fault):
            check_plan(case.graph, case.profile, case.links, broken)
