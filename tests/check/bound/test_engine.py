"""Engines and windows: the checker finds plans that copy where they may not, or more than engines can."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import pytest
from exhaustive_async_moves import windows
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, random_case, training_step_case, with_engines

from autotm.check.bound import Engines, _late
from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Move, Plan, SpanPrices, Status
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve


@pytest.fixture(scope="module")
def case() -> Case:
    return with_engines(training_step_case(layers=3), 2.0)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    options = SolveOptions(gap=0.2, time_limit_s=200.0)
    found = solve(case.graph, case.profile, case.links, "asynchronous", Limit(4, 1), options)
    check_plan(case.graph, case.profile, case.links, found)
    assert sum(move.is_asynchronous for move in found.moves) > 2
    assert found.certificate is not None
    assert found.certificate.out.starts or found.certificate.back.starts
    return found


@given(seed=st.integers(0, 2**31 - 1))
def test_windows_are_those_of_the_definition(seed: int) -> None:
    case = with_engines(random_case(seed, kernels=12), 1.0 + seed % 3)
    engines, found = Engines.of(case.graph, case.profile, case.links), 0
    for tensor in case.graph.movable:
        for before, after in pairwise(tensor.users):
            for tier in Tier:
                gap = (before + 1, after)
                assert set(engines.windows(tensor, tier, *gap)) == windows(case, tensor, tier, gap)
                found += len(windows(case, tensor, tier, gap))
    assert found


def test_a_move_beside_other_kernels_than_a_windows_is_found(case: Case, plan: Plan) -> None:
    """Every asynchronous move of the plan, beside every span of its gap that is none of its windows."""
    engines, tried = Engines.of(case.graph, case.profile, case.links), 0
    for move in (move for move in plan.moves if move.is_asynchronous):
        tensor = case.graph.by_name[move.tensor]
        first = max(user for user in tensor.users if user < move.start) + 1
        end = min(user for user in tensor.users if user >= move.start)
        allowed = windows(case, tensor, move.destination, (first, end))
        assert (move.start, move.before) in allowed
        for span in combinations(range(first, end + 1), 2):
            if span not in allowed:
                with pytest.raises(FaultError) as caught:
                    engines.check(case.graph, [replace(move, since=span[0], before=span[1])])
                assert caught.value.fault is Fault.WINDOW
                tried += 1
    assert tried > 20


def certificate(plan: Plan, **changes: object) -> Plan:
    assert plan.certificate is not None
    return replace(plan, certificate=replace(plan.certificate, **changes))


def higher_bound(plan: Plan) -> Plan:
    """By no more than a thousandth."""
    return replace(plan, bound_us=plan.bound_us + 1e-3 * plan.objective_us, status=Status.ABOVE_GAP)


DEFECTS: list[tuple[Callable[[Plan], Plan], Fault]] = [
    (lambda plan: replace(plan, optimizer="synchronous"), Fault.MOVES_FORBIDDEN),
    (lambda plan: replace(plan, objective_us=plan.objective_us * 1.001), Fault.OBJECTIVE),
    (lambda plan: certificate(plan, out=SpanPrices((0,), (1,), (-1e-6,))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, back=SpanPrices((0, 1), (2, 2), (1.0,))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, out=SpanPrices((0,), (1,), (float("nan"),))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, out=SpanPrices((1,), (1,), (1.0,))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, out=SpanPrices((0,), (10**6,), (1.0,))), Fault.CERTIFICATE),
    (higher_bound, Fault.BOUND),
    (lambda plan: certificate(plan, back=SpanPrices((0,), (1,), (1.0,))), Fault.BOUND),
]


@pytest.mark.parametrize(("break_it", "fault"), DEFECTS)
def test_each_defect_is_named(case: Case, plan: Plan, break_it: Callable[[Plan], Plan], fault: Fault) -> None:
    with pytest.raises(FaultError) as caught:
        check_plan(case.graph, case.profile, case.links, break_it(plan))
    assert caught.value.fault is fault


def test_engines_with_more_to_do_than_they_can_are_found(case: Case) -> None:
    """Every tensor that could leave in its shortest window does so: some span is asked for more time than it has."""
    engines = Engines.of(case.graph, case.profile, case.links)
    moves, jobs = [], []
    for tensor in case.graph.movable:
        for before, after in pairwise(tensor.users):
            for start, end in list(engines.windows(tensor, Tier.SLOW, before + 1, after))[:1]:
                moves.append(Move(tensor.name, Tier.SLOW, end, start))
                jobs.append((start, end, engines.work_ns(tensor, Tier.SLOW, start, end)))
    assert max(excess_ns(jobs, engines.kernel_ns.tolist())) > 0
    with pytest.raises(FaultError) as caught:
        engines.check(case.graph, moves)
    assert caught.value.fault is Fault.ENGINE


def excess_ns(jobs: list[tuple[int, int, int]], kernel_ns: list[int]) -> list[int]:
    """What windows [start, end) within every span of kernels ask for more than it lasts."""
    spans = combinations(range(len(kernel_ns) + 1), 2)
    return [
        sum(work for start, end, work in jobs if first <= start and end <= last) - sum(kernel_ns[first:last])
        for first, last in spans
    ]


@given(seed=st.integers(0, 2**31 - 1))
def test_engines_keep_up_exactly_where_no_span_is_asked_for_too_much(seed: int) -> None:
    """The checker serves the move first that must be complete first; the other way to see it counts demand."""
    draw = random.Random(seed)
    kernel_ns = [draw.randrange(0, 9) for _ in range(8)]
    until_ns, jobs = list(accumulate(kernel_ns, initial=0)), []
    found = set()
    for number in range(12):
        start, end = sorted(draw.sample(range(len(kernel_ns) + 1), 2))
        jobs.append((start, end, draw.randrange(1, 6)))
        is_late = _late([(until_ns[a], until_ns[b], work, f"{number}") for a, b, work in jobs]) is not None
        assert is_late == (max(excess_ns(jobs, kernel_ns)) > 0)
        found.add(is_late)
    assert found == {True, False} or max(excess_ns(jobs[:1], kernel_ns)) > 0


def test_engines_that_nobody_uses_have_no_price() -> None:
    case = random_case(3)
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(1, 1))
    with pytest.raises(FaultError) as caught:
        check_plan(case.graph, case.profile, case.links, certificate(plan, out=SpanPrices((0,), (1,), (0.0,))))
    assert caught.value.fault is Fault.CERTIFICATE
