"""Engines, windows and prices of certificates: whatever the prices, the bound holds; what is not proven is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import accumulate, combinations, pairwise

import pytest
from checked_plans import solved
from exhaustive import exact_optimum_us, optimum_us, overlapped_optimum_us, windows
from faults import refused
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, training_step_case, with_engines

from autotm.check.bound import Engines, _late, proven_bound_us
from autotm.check.fault import Fault
from autotm.check.plan import check_plan
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Certificate, Cut, KernelPrices, Move, Plan, SlowPrices, SpanPrices, Status
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve


@pytest.fixture(scope="module")
def case() -> Case:
    return with_engines(training_step_case(layers=3), 2.0)


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    plan = solved(case, "asynchronous", Limit(4, 1), SolveOptions(gap=0.2, time_limit_s=200.0))
    assert sum(move.is_asynchronous for move in plan.moves) > 2
    assert plan.certificate is not None
    assert plan.certificate.out.starts or plan.certificate.back.starts
    return plan


@given(seed=st.integers(0, 2**31 - 1))
def test_windows_are_those_of_the_definition(seed: int) -> None:
    case = with_engines(random_case(seed, kernels=12), 1.0 + seed % 3)
    engines, count = Engines.of(*case), 0
    for tensor in case.graph.movable:
        for before, after in pairwise(tensor.users):
            for tier in Tier:
                gap = (before + 1, after)
                assert set(engines.windows(tensor, tier, *gap)) == windows(case, tensor, tier, gap)
                count += len(windows(case, tensor, tier, gap))
    assert count


def test_a_move_beside_other_kernels_than_a_windows_is_found(case: Case, plan: Plan) -> None:
    """Every asynchronous move of the plan, beside every span of its gap that is none of its windows."""
    engines, tried = Engines.of(*case), 0
    for move in (move for move in plan.moves if move.is_asynchronous):
        tensor = case.graph.by_name[move.tensor]
        first = max(user for user in tensor.users if user < move.start) + 1
        end = min(user for user in tensor.users if user >= move.start)
        allowed = windows(case, tensor, move.destination, (first, end))
        assert (move.start, move.before) in allowed
        for span in combinations(range(first, end + 1), 2):
            if span not in allowed:
                with refused(Fault.WINDOW):
                    engines.check(case.graph, [replace(move, since=span[0], before=span[1])])
                tried += 1
    assert tried > 20


def certificate(plan: Plan, **changes: object) -> Plan:
    assert plan.certificate is not None
    return replace(plan, certificate=replace(plan.certificate, **changes))


def higher_bound(plan: Plan) -> Plan:
    """The plan with a bound raised by a thousandth of its objective."""
    return replace(plan, bound_us=plan.bound_us + 1e-3 * plan.objective_us, status=Status.ABOVE_GAP)


def dearer(plan: Plan) -> Plan:
    """Every byte costs ten times as much, which proves less."""
    assert plan.certificate is not None
    fast = plan.certificate.fast
    return certificate(plan, fast=replace(fast, prices_us=tuple(10 * price_us for price_us in fast.prices_us)))


DEFECTS: list[tuple[Callable[[Plan], Plan], Fault]] = [
    (lambda plan: replace(plan, optimizer="synchronous"), Fault.MOVES_FORBIDDEN),
    (lambda plan: replace(plan, objective_us=plan.objective_us * 1.001), Fault.OBJECTIVE),
    (lambda plan: certificate(plan, out=SpanPrices((0,), (1,), (-1e-6,))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, back=SpanPrices((0, 1), (2, 2), (1.0,))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, out=SpanPrices((0,), (1,), (float("nan"),))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, out=SpanPrices((1,), (1,), (1.0,))), Fault.CERTIFICATE),
    (lambda plan: certificate(plan, out=SpanPrices((0,), (10**6,), (1.0,))), Fault.CERTIFICATE),
    (higher_bound, Fault.BOUND),
    (dearer, Fault.BOUND),
    (lambda plan: certificate(plan, back=SpanPrices((0,), (1,), (1.0,))), Fault.BOUND),
]


@pytest.mark.parametrize(("break_it", "fault"), DEFECTS)
def test_each_defect_is_named(case: Case, plan: Plan, break_it: Callable[[Plan], Plan], fault: Fault) -> None:
    with refused(fault):
        check_plan(*case, break_it(plan))


def test_engines_with_more_to_do_than_they_can_are_found(case: Case) -> None:
    """Every tensor that could leave in its shortest window does so: some span is asked for more time than it has."""
    engines = Engines.of(*case)
    moves, jobs = [], []
    for tensor in case.graph.movable:
        for before, after in pairwise(tensor.users):
            for start, end in list(engines.windows(tensor, Tier.SLOW, before + 1, after))[:1]:
                moves.append(Move(tensor.name, Tier.SLOW, end, start))
                jobs.append((start, end, engines.work_ns(tensor, Tier.SLOW, start, end)))
    assert max(excess_ns(jobs, engines.kernel_ns.tolist())) > 0
    with refused(Fault.ENGINE):
        engines.check(case.graph, moves)


def excess_ns(jobs: list[tuple[int, int, int]], kernel_ns: list[int]) -> list[int]:
    """For every span of kernels, the work of the windows [start, end) within it less the time that it lasts."""
    return [
        sum(work for start, end, work in jobs if first <= start and end <= last) - sum(kernel_ns[first:last])
        for first, last in combinations(range(len(kernel_ns) + 1), 2)
    ]


@given(seed=st.integers(0, 2**31 - 1))
def test_engines_keep_up_exactly_where_no_span_is_asked_for_too_much(seed: int) -> None:
    """The checker serves the move first that must be complete first; the other way to see it counts demand."""
    draw = random.Random(seed)
    kernel_ns = [draw.randrange(0, 9) for _ in range(8)]
    until_ns, jobs = list(accumulate(kernel_ns, initial=0)), []
    drawn = [(*sorted(draw.sample(range(len(kernel_ns) + 1), 2)), draw.randrange(1, 6)) for _ in range(12)]
    is_late = False
    for job in [*drawn, (0, len(kernel_ns), sum(kernel_ns) + 1)]:
        jobs.append(job)
        is_late = _late([(until_ns[a], until_ns[b], work, "") for a, b, work in jobs]) is not None
        assert is_late == (max(excess_ns(jobs, kernel_ns)) > 0)
    assert is_late  # The last job has more to do than there is time.


def test_engines_that_nobody_uses_have_no_price() -> None:
    case = random_case(3)
    plan = solve(*case, "synchronous", Limit(1, 1))
    with refused(Fault.CERTIFICATE):
        check_plan(*case, certificate(plan, out=SpanPrices((0,), (1,), (0.0,))))


def random_certificate(case: Case, plan: Plan, draw: random.Random) -> Certificate:
    kernels = tuple(range(len(case.graph.kernels)))

    def prices(scale: float) -> tuple[float, ...]:
        return tuple(scale * draw.expovariate(1.0) if draw.random() < 0.4 else 0.0 for _ in kernels)

    keys = [(index, name) for index in plan.tabled for name in case.graph.slots_of(case.graph.kernels[index])]
    own = {o.tensor for kernel in case.graph.kernels if kernel.alternatives for o in kernel.workspaces}
    entries = [(index, name, draw.gauss(0.0, 2.0)) for index, name in keys if name not in own and draw.random() < 0.7]
    slow = SlowPrices(*(tuple(column) for column in zip(*entries, strict=True))) if entries else SlowPrices()
    flying = plan.optimizer == "asynchronous"
    out, back = (random_spans(len(kernels), draw) if flying else SpanPrices() for _ in range(2))
    cuts = []
    for _ in range(2):
        names = tuple(tensor.name for tensor in case.graph.movable if draw.random() < 0.6)
        cuts.append(Cut(names, tuple(draw.randint(1, 5) for _ in names), kernels, prices(0.5)))
    return Certificate(KernelPrices(kernels, prices(2e-3)), tuple(cuts), slow, out, back)


def random_spans(kernels: int, draw: random.Random) -> SpanPrices:
    spans = [sorted(draw.sample(range(kernels + 1), 2)) for _ in range(draw.randrange(6))]
    return SpanPrices(*map(tuple, zip(*((*span, 1e-3 * draw.expovariate(1.0)) for span in spans), strict=True)))


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["static", "synchronous", "asynchronous"]))
def test_whatever_the_prices_the_bound_holds(seed: int, optimizer: str) -> None:
    case, draw = with_engines(random_case(seed, kernels=5), 1.0), random.Random(seed)
    plan = solve(*case, optimizer, Limit(2, 1), SolveOptions(gap=0.5))
    if optimizer == "asynchronous":
        optimum, _ = overlapped_optimum_us(case, plan.dram_limit_bytes)
    else:
        optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert highest_bound_us(case, plan, draw) <= optimum * (1 + 1e-9)


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["static", "synchronous"]))
def test_so_it_does_with_tables_and_implementations(seed: int, optimizer: str) -> None:
    case, draw = exact_case(seed, kernels=3), random.Random(seed)
    plan = solve(*case, optimizer, Limit(2, 1), SolveOptions(gap=0.5, additive_tolerance=0.0))
    optimum = exact_optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert highest_bound_us(case, plan, draw) <= optimum * (1 + 1e-9)


def highest_bound_us(case: Case, plan: Plan, draw: random.Random) -> float:
    """Of random prices, each kind of them mixed with those that the search found, which are near the truth."""
    assert plan.certificate is not None
    bounds_us = []
    for _ in range(25):
        drawn = random_certificate(case, plan, draw)
        kept = {field.name: getattr(plan.certificate, field.name) for field in fields(drawn) if draw.random() < 0.5}
        bounds_us.append(proven_bound_us(*case, replace(plan, certificate=replace(drawn, **kept))))
    return max(bounds_us)


def test_what_leaves_no_plan_at_all_proves_nothing(case: Case, plan: Plan) -> None:
    """Kernels here need fast operands and the limit is 0 bytes."""
    with refused(Fault.CERTIFICATE):
        proven_bound_us(*case, replace(plan, dram_limit_bytes=0), fast_operands_only=True)
