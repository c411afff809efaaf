"""Plans that have addresses within their limit, stays that do not fit together, and several limits at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from checked_plans import forced, solved, swept
from hypothesis import assume, given
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, training_step_case, with_engines

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.addresses import Addresses
from autotm.layout.compile import compile_program
from autotm.layout.packing import Place, layout_of
from autotm.model.errors import AutotmError, IllegalPlanError, InfeasibleLimitError
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status, Stay
from autotm.model.program import Layout
from autotm.solve import highs, options
from autotm.solve.optimizer import Optimizer
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve, solve_and_pack, sweep_and_pack
from autotm.solve.problem import Problem

fit = importlib.import_module("autotm.solve.placing")
EXACT = SolveOptions(gap=0.0)


def test_what_does_not_fit_together_is_given_up_and_the_plan_is_for_the_limit_asked() -> None:
    limit, case = Limit(2, 1), random_case(82, kernels=9)
    first = solve(*case, "synchronous", limit, EXACT)
    assert layout_of(case.graph, first).fast_bytes > first.dram_limit_bytes, "this step's best plan cannot be packed"
    plan, layout = solve_and_pack(*case, "synchronous", limit, EXACT)
    assert layout.fast_bytes <= plan.dram_limit_bytes == first.dram_limit_bytes
    assert plan.limit == first.limit
    assert plan.bound_us == pytest.approx(first.bound_us)
    assert first.objective_us <= plan.objective_us
    assert plan.offsets == layout.offsets
    assert plan.solve_s == pytest.approx(sum(seconds for _, seconds in plan.attempts_s))
    assert plan.status is (Status.ABOVE_GAP if plan.gap > 0 else Status.OPTIMAL), "the gap is that of the limit asked"
    check_plan(*case, plan)
    check_program(case.graph, plan, compile_program(case.graph, plan, layout))


def test_options_hold_for_plans_with_addresses() -> None:
    limit, case = Limit(1, 2), random_case(1, kernels=9)
    plan, _ = solve_and_pack(*case, "synchronous", limit)
    with pytest.raises(IllegalPlanError):
        check_plan(*case, plan, fast_operands_only=True)
    plan, _ = solve_and_pack(*case, "synchronous", limit, SolveOptions(fast_operands_only=True))
    check_plan(*case, plan, fast_operands_only=True)


def test_no_limit_tolerates_fragmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(0)
    monkeypatch.setattr(fit, "layout_of", needing(repeat(case.graph.peak_live_bytes + 64)))
    plan, layout = solve_and_pack(*case, "all-fast", Limit(0, 1))
    assert layout.fast_bytes > plan.dram_limit_bytes


def test_what_cannot_be_packed_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(0)
    peak = case.graph.peak_live_bytes
    monkeypatch.setattr(fit, "layout_of", needing(repeat(peak + 64)))
    with pytest.raises(AutotmError, match=f"offsets need {peak + 64}, .* at least {peak + 64} bytes"):
        solve_and_pack(*case, "all-fast", Limit(size_bytes=peak))


def test_the_limit_is_tightened_until_the_offsets_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packing that wastes half of what it gets: most of the limit has to go, and a plan comes out all the same."""
    case = random_case(0)
    monkeypatch.setattr(fit, "layout_of", lambda graph, plan, place: wasteful(layout_of(graph, plan, place), 1.5))
    limit = Limit(size_bytes=case.graph.peak_live_bytes // 2)
    plan, layout = solve_and_pack(*case, "synchronous", limit)
    assert 1.5 * 64 < layout.fast_bytes <= plan.dram_limit_bytes == limit.size_bytes
    assert len(plan.attempts_s) > 2
    check_plan(*case, plan)
    monkeypatch.setattr(fit, "layout_of", lambda graph, plan, place: wasteful(layout_of(graph, plan, place), 1e6))
    plan, layout = solve_and_pack(*case, "synchronous", limit)
    assert layout.fast_bytes == 0, "nothing is fast where nothing can be packed"


def wasteful(layout: Layout, times: float) -> Layout:
    return replace(layout, fast_bytes=int(layout.fast_bytes * times))


@pytest.mark.parametrize(("found_us", "status"), [(101.0, Status.WITHIN_GAP), (103.0, Status.ABOVE_GAP)])
def test_a_plan_outside_the_gap_only_because_of_the_smaller_limit_is_searched_closer(
    monkeypatch: pytest.MonkeyPatch, found_us: float, status: Status
) -> None:
    case = random_case(0)
    limit = case.graph.peak_live_bytes // 2
    first = solve(*case, "static", Limit(size_bytes=limit), EXACT)
    first = replace(first, objective_us=101.5, bound_us=100.0, status=Status.WITHIN_GAP)
    at_smaller = replace(first, objective_us=102.5, bound_us=101.0, attempts_s=((1.0, 2.0),))
    closer = replace(at_smaller, objective_us=found_us, attempts_s=((1.0, 4.0),))
    results, gaps = iter([first, at_smaller, closer]), []

    def sweep(_: Optimizer, problem: Problem, __: Sequence[Limit]) -> tuple[Plan, ...]:
        gaps.append(problem.options.gap)
        return (next(results),)

    monkeypatch.setattr(Optimizer, "sweep", sweep)
    monkeypatch.setattr(fit, "layout_of", needing(iter([limit + 64, limit, limit])))
    plan, _ = solve_and_pack(*case, "static", Limit(size_bytes=limit), SolveOptions(gap=0.02))
    assert gaps == pytest.approx([0.02, 0.02, 1 - 0.98 * 1.01])
    assert (plan.objective_us, plan.bound_us, plan.status) == (min(found_us, 102.5), 100.0, status)
    assert plan.attempts_s == (*first.attempts_s, (1.0, 2.0), (1.0, 4.0))


def test_a_plan_that_nothing_searched_for_claims_no_proof_when_packed_into_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = random_case(0)
    limit = case.graph.peak_live_bytes // 2
    monkeypatch.setattr(fit, "layout_of", needing(iter([limit + 64, limit])))
    plan, _ = solve_and_pack(*case, "numa", Limit(size_bytes=limit))
    assert len(plan.attempts_s) == 2
    assert (plan.status, plan.gap, plan.dram_limit_bytes) == (Status.NOT_OPTIMIZED, 0, limit)
    check_plan(*case, plan)


def needing(needs: Iterator[int]) -> Callable[[Graph, Plan, Place], Layout]:
    """A packing that needs so many bytes, call after call."""
    return lambda graph, plan, place: replace(layout_of(graph, plan, place), fast_bytes=next(needs))


TIGHT = Limit(1, 2)


@dataclass
class Quarrel:
    """A packing for which some stays never fit together, nor longer ones; without any, nothing ever fits."""

    stays: Sequence[Stay]
    asked: int = 0
    limits: set[int] = field(default_factory=set)

    def fits(self, stays: Sequence[Stay], _: Mapping[int, str], limit_bytes: int) -> bool:
        self.asked += 1
        self.limits.add(limit_bytes)
        return not all(any(covers(mine, stay) for mine in stays) for stay in self.stays)

    def conflict(self, stays: Sequence[Stay], *rest: Any) -> Sequence[Stay]:
        first = [stay for stay in stays if stay.tier is Tier.FAST][:1]
        return () if self.fits(stays, *rest) else self.stays or first

    def addresses(self, *_: object) -> Iterator[Addresses]:
        """Nothing has addresses of its own."""
        return iter(())

    def keep(self, *_: object) -> bool:
        return False


def covers(stay: Stay, other: Stay) -> bool:
    same = (stay.tensor, stay.tier) == (other.tensor, other.tier)
    return same and stay.start <= other.start and other.end <= stay.end


def fast_stays(plan: Plan) -> list[Stay]:
    return [stay for stay in plan.stays if stay.tier is Tier.FAST]


@given(seed=st.integers(0, 2**31 - 1), data=st.data())
def test_the_cheapest_way_out_is_taken(seed: int, data: st.DataObject) -> None:
    """Two tensors that may not both be fast: the plan is the better of those with either one slow, proven or not."""
    case = random_case(seed, kernels=9)
    first = solved(case, "static", TIGHT, EXACT)
    pairs = list(combinations(fast_stays(first), 2))
    assume(pairs)
    pair = data.draw(st.sampled_from(pairs))
    packing = Quarrel(pair)
    plan = solved(case, "static", TIGHT, EXACT, packing)
    assert not set(pair) <= set(plan.stays)
    slow = [forced(case, "static", TIGHT, EXACT, {stay.tensor: Tier.SLOW}) for stay in pair]
    assert plan.objective_us == pytest.approx(min(alternative.objective_us for alternative in slow))
    assert plan.bound_us == pytest.approx(first.bound_us), "the bound is that of the program without conflicts"
    assert packing.limits == {plan.dram_limit_bytes}


@given(seed=st.integers(0, 2**31 - 1), optimizer=st.sampled_from(["synchronous", "asynchronous"]))
def test_moving_tensors_give_up_a_part_of_their_stay(seed: int, optimizer: str) -> None:
    case = with_engines(random_case(seed, kernels=9))
    first = solved(case, optimizer, TIGHT, EXACT)
    packing = Quarrel(fast_stays(first)[:3])
    assume(packing.stays)
    plan = solved(case, optimizer, TIGHT, EXACT, packing)
    assert packing.asked >= 2
    assert not all(any(covers(mine, stay) for mine in plan.stays) for stay in packing.stays)
    slow = [forced(case, optimizer, TIGHT, EXACT, {stay.tensor: Tier.SLOW}) for stay in packing.stays]
    assert first.objective_us <= plan.objective_us * (1 + 1e-9)
    way_out_us = min(alternative.objective_us for alternative in slow)
    assert plan.objective_us <= way_out_us * (1 + 1e-9), "one of them in slow memory for life is always a way out"


def test_what_is_never_content_ends_the_search_with_a_plan() -> None:
    case = random_case(3, kernels=9)
    plan = solved(case, "static", TIGHT, EXACT, Quarrel(()))
    assert plan.bound_us == pytest.approx(solved(case, "static", TIGHT, EXACT).bound_us)


LIMITS = (Limit(1, 1), Limit(1, 0), Limit(4, 1), Limit(0, 1), Limit(1, 1))


def monotone(case: Case, optimizer: str, limits: tuple[Limit, ...], options: SolveOptions) -> tuple[Plan, ...]:
    """Checked plans of which none is slower than one for less fast memory."""
    plans = swept(case, optimizer, limits, options)
    for tighter, looser in pairwise(sorted(plans, key=lambda plan: plan.dram_limit_bytes)):
        assert looser.objective_us <= tighter.objective_us * (1 + 1e-12)
    return plans


@pytest.mark.parametrize(
    ("seed", "optimizer"), [(0, "static"), (0, "synchronous"), (1, "synchronous"), (3, "static"), (0, "all-slow")]
)
def test_optima_of_small_graphs(seed: int, optimizer: str) -> None:
    case = exact_case(seed, kernels=5, alternatives=seed % 4 == 3) if seed % 2 else random_case(seed, kernels=9)
    options = SolveOptions(gap=0.0, additive_tolerance=0.0)
    for plan in monotone(case, optimizer, LIMITS, options):
        alone = solve(*case, optimizer, Limit.parse(plan.limit), options)
        assert plan.objective_us == pytest.approx(alone.objective_us, rel=1e-9)
        assert plan.status == alone.status


def test_kernels_that_need_fast_operands() -> None:
    case = random_case(2, kernels=8)
    options = SolveOptions(gap=0.0, fast_operands_only=True)
    monotone(case, "synchronous", (Limit(0, 1), Limit(size_bytes=6464)), options)
    with pytest.raises(InfeasibleLimitError, match="limit 1:0"):
        swept(case, "synchronous", (Limit(0, 1), Limit(1, 0)), options)


def test_a_lost_solver_costs_one_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = random_case(4, kernels=12), []
    original = highs._run_watched

    def hangs_once(solver: Any, deadline_s: float) -> None:
        calls.append(solver)
        if len(calls) == 1:
            raise highs._Hung
        original(solver, deadline_s)

    monkeypatch.setattr(highs, "_run_watched", hangs_once)
    plans = monotone(case, "synchronous", (Limit(4, 1), Limit(2, 1), Limit(1, 1)), SolveOptions(gap=0.0))
    assert plans[0].status is Status.TIME_LIMIT
    assert {plan.status for plan in plans[1:]} == {Status.OPTIMAL}
    assert all(solver is not calls[0] for solver in calls[1:])


def test_a_time_limit_for_all_leaves_a_legal_plan_for_each() -> None:
    case = training_step_case(layers=6, branches=3)
    placed = sweep_and_pack(*case, "synchronous", LIMITS, SolveOptions(gap=0.0, sweep_s=1e-3))
    for limit, (plan, layout) in zip(LIMITS, placed, strict=True):
        assert plan.limit == limit
        check_plan(*case, plan)
        assert fits(plan, layout)


def test_what_one_limit_leaves_goes_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(options, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    shares = options.TimeBudget(30.0, 3)
    assert shares.next_s() == pytest.approx(15.0)
    clock[0] += 3
    assert shares.next_s() == pytest.approx(18.0)
    clock[0] += 20
    assert shares.next_s() == pytest.approx(7.0)
    clock[0] += 50
    assert shares.next_s() == pytest.approx(5.0)
