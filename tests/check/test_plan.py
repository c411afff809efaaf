"""The checker rejects each kind of broken plan for its own reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from checked_plans import packed, solved
from faults import refused
from random_graphs import Case, random_case, with_engines, with_state

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_addresses, check_plan
from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Certificate, KernelPrices, Move, Plan, Status, Stay
from autotm.solve.options import SolveOptions

FAST_OPERANDS = SolveOptions(fast_operands_only=True)


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(12, kernels=10)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    """A synchronous plan with both kinds of moves, slow and fast births."""
    plan = solved(case, "synchronous", Limit(2, 1), SolveOptions(gap=0.0))
    assert {move.destination for move in plan.moves} == set(Tier)
    return plan


def with_stays(plan: Plan, stays: list[Stay]) -> Plan:
    return replace(plan, stays=tuple(sorted(stays, key=lambda stay: (stay.start, stay.tensor, stay.tier))))


def move_to(plan: Plan, tier: Tier) -> Move:
    return next(move for move in plan.moves if move.destination is tier)


def unmoved(plan: Plan) -> Stay:
    """The stay of a tensor that never moves."""
    moved = {move.tensor for move in plan.moves}
    return next(stay for stay in plan.stays if stay.tensor not in moved)


def other_tier(stay: Stay) -> Tier:
    return Tier.FAST if stay.tier is Tier.SLOW else Tier.SLOW


def stay_at(plan: Plan, tensor: str, tier: Tier, kernel: int) -> Stay:
    return next(s for s in plan.stays if (s.tensor, s.tier) == (tensor, tier) and s.start <= kernel < s.end)


def exchanged(plan: Plan, stay: Stay, *others: Stay) -> Plan:
    return with_stays(plan, [*(one for one in plan.stays if one != stay), *others])


def cut_read_source(plan: Plan) -> Plan:
    """The slow copy ends just before the read that needs it."""
    move = move_to(plan, Tier.FAST)
    source = stay_at(plan, move.tensor, Tier.SLOW, move.before)
    assert source.start < move.before
    return exchanged(plan, source, replace(source, end=move.before))


def cut_write_source(plan: Plan) -> Plan:
    """The fast stay that the write reads is missing."""
    move = move_to(plan, Tier.SLOW)
    return exchanged(plan, stay_at(plan, move.tensor, Tier.FAST, move.before - 1))


def without_destination(plan: Plan) -> Plan:
    written = move_to(plan, Tier.SLOW).tensor
    return with_stays(plan, [stay for stay in plan.stays if (stay.tensor, stay.tier) != (written, Tier.SLOW)])


def unknown_move(plan: Plan) -> Plan:
    moves = [*plan.moves, Move("nothing", Tier.FAST, 1)]
    return replace(plan, moves=tuple(sorted(moves, key=lambda move: (move.before, move.destination is Tier.FAST))))


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


DEFECTS: list[tuple[Callable[[Plan], Plan], Fault]] = [
    (lambda p: exchanged(p, unmoved(p)), Fault.NOT_HELD),
    (cut_read_source, Fault.NO_SOURCE),
    (cut_write_source, Fault.NO_SOURCE),
    (without_destination, Fault.NO_DESTINATION),
    (lambda p: replace(p, moves=tuple(move for move in p.moves if move != move_to(p, Tier.SLOW))), Fault.NO_ORIGIN),
    (lambda p: with_stays(p, [*p.stays, p.stays[0]]), Fault.DOUBLE_STAY),
    (lambda p: with_stays(p, [*p.stays, replace(unmoved(p), tier=other_tier(unmoved(p)))]), Fault.BORN_TWICE),
    (lambda p: exchanged(p, p.stays[-1], replace(p.stays[-1], end=p.stays[-1].end + 1)), Fault.BAD_SPAN),
    (lambda p: replace(p, moves=(Move(p.stays[0].tensor, Tier.SLOW, 0), *p.moves)), Fault.BAD_SPAN),
    (lambda p: with_stays(p, [*p.stays, Stay("weight", Tier.FAST, 0, 1)]), Fault.UNKNOWN_TENSOR),
    (unknown_move, Fault.UNKNOWN_TENSOR),
    (lambda p: replace(p, stays=p.stays[::-1]), Fault.ORDER),
    (lambda p: replace(p, moves=p.moves[::-1]), Fault.ORDER),
    (lambda p: replace(p, moves=(p.moves[0], *p.moves)), Fault.ORDER),
    (flip_configuration, Fault.CONFIGURATION),
    (lambda p: replace(p, configurations=p.configurations[:-1]), Fault.CONFIGURATION),
    (all_in_fast_memory, Fault.LIMIT),
    (lambda p: replace(p, dram_limit_bytes=p.dram_limit_bytes + 1), Fault.LIMIT_BYTES),
    (lambda p: replace(p, optimizer="static"), Fault.MOVES_FORBIDDEN),
    (lambda p: replace(all_in_fast_memory(p), optimizer="all-slow"), Fault.WRONG_TIER),
    (lambda p: replace(p, objective_us=p.objective_us * 0.999, bound_us=0.0), Fault.OBJECTIVE),
    (lambda p: replace(p, objective_us=float("nan")), Fault.OBJECTIVE),
    (lambda p: replace(p, bound_us=p.objective_us * 1.01), Fault.GAP),
    (lambda p: replace(p, bound_us=-p.objective_us), Fault.GAP),
    (lambda p: replace(p, bound_us=0.5 * p.bound_us, status=Status.OPTIMAL), Fault.GAP),
    (lambda p: replace(p, certificate=None), Fault.CERTIFICATE),
    (lambda p: replace(p, status=Status.NOT_OPTIMIZED), Fault.CERTIFICATE),
    (
        lambda p: replace(
            p, certificate=None, status=Status.NOT_OPTIMIZED, bound_us=p.objective_us, solver_bound_us=None
        ),
        Fault.CERTIFICATE,
    ),
    (lambda p: replace(p, certificate=Certificate(KernelPrices((0,), (-1.0,)))), Fault.CERTIFICATE),
    (lambda p: replace(p, bound_us=0.5 * p.bound_us, solver_bound_us=1.01 * p.objective_us), Fault.GAP),
    (lambda p: replace(p, solver_bound_us=0.5 * p.bound_us), Fault.GAP),
    (lambda p: replace(p, certificate=Certificate()), Fault.BOUND),
    (lambda p: replace(p, graph_hash="0"), Fault.OTHER_GRAPH),
]


@pytest.mark.parametrize(("break_it", "fault"), DEFECTS, ids=lambda value: getattr(value, "name", None))
def test_each_defect_is_named(case: Case, plan: Plan, break_it: Callable[[Plan], Plan], fault: Fault) -> None:
    with refused(fault):
        check_plan(*case, break_it(plan))


def test_unknown_optimizer(case: Case, plan: Plan) -> None:
    with pytest.raises(BadInputError, match="unknown optimizer 'statik'; did you mean 'static'"):
        check_plan(*case, replace(plan, optimizer="statik"))


def test_restrictions_of_the_machine(case: Case, plan: Plan) -> None:
    with refused(Fault.WRONG_TIER):
        check_plan(*case, plan, fast_operands_only=True)


@pytest.mark.parametrize("tensor", ["old", "new"])
def test_state_that_does_not_wait_in_slow_memory_is_refused(tensor: str) -> None:
    case = with_state(random_case(12, kernels=10), 0)
    plan, whole = solved(case, "synchronous", Limit(size_bytes=6200), FAST_OPERANDS), case.graph.by_name[tensor].live
    others = [stay for stay in plan.stays if stay.tensor != tensor]
    kept = with_stays(plan, [*others, Stay(tensor, Tier.FAST, whole.start, whole.stop)])
    kept = replace(kept, moves=tuple(move for move in plan.moves if move.tensor != tensor))
    assert len(kept.moves) < len(plan.moves)
    with refused(Fault.NOT_HELD):
        check_plan(*case, kept, fast_operands_only=True)


def test_half_a_life_is_no_static_stay(case: Case) -> None:
    static = solved(case, "static", Limit(2, 1))
    stay = next(stay for stay in static.stays if stay.end - stay.start > 1)
    with refused(Fault.NOT_HELD):
        check_plan(*case, exchanged(static, stay, replace(stay, end=stay.end - 1)))


@pytest.mark.parametrize("optimizer", ["static", "synchronous", "asynchronous"])
@pytest.mark.parametrize("gap", [0.99, 0.0])
def test_a_bound_that_is_not_proven_is_refused(optimizer: str, gap: float) -> None:
    """However it was found, a thousandth more is too much, and what the solver claims proves nothing."""
    case = with_engines(random_case(2, kernels=9))
    plan = solved(case, optimizer, Limit(2, 1), SolveOptions(gap=gap))
    raised_us = plan.bound_us + 1e-3 * plan.objective_us
    for claim_us in (None, plan.objective_us):
        raised = replace(plan, bound_us=raised_us, status=Status.WITHIN_GAP, solver_bound_us=claim_us)
        with refused(Fault.BOUND if raised_us <= plan.objective_us else Fault.GAP):
            check_plan(*case, raised)


def meet(case: Case, plan: Plan, one: int, other: int) -> bool:
    """Whether two stays share kernels and bytes of a tier."""
    first, second = plan.stays[one], plan.stays[other]
    sizes = [case.graph.by_name[plan.stays[number].tensor].allocated_bytes for number in (one, other)]
    together = first.tier is second.tier and first.start < second.end and second.start < first.end
    low, high = plan.offsets[one], plan.offsets[other]
    return together and low < high + sizes[1] and high < low + sizes[0]


@pytest.mark.parametrize("seed", range(2))  # Each tries hundreds of offsets.
def test_any_other_offset_is_judged_as_by_looking_at_every_pair(seed: int) -> None:
    case, refused = random_case(seed, kernels=12), 0
    plan, *_ = packed(case, "synchronous", Limit(1, 1))
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
    case = random_case(0, kernels=12)
    plan, *_ = packed(case, "synchronous", Limit(1, 1))
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
            check_plan(*case, broken)
