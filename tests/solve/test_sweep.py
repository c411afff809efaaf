"""A sweep gives what separate solves give, limit by limit, whatever their order."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from random_graphs import Case, exact_case, random_case, training_step_case

from autotm.check.plan import check_plan
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.solve import highs, options
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve, sweep, sweep_and_pack

LIMITS = (Limit(1, 1), Limit(1, 0), Limit(4, 1), Limit(0, 1), Limit(1, 1))


def swept(case: Case, optimizer: str, limits: tuple[Limit, ...], options: SolveOptions) -> tuple[Plan, ...]:
    plans = sweep(case.graph, case.profile, case.links, optimizer, limits, options)
    assert [plan.limit for plan in plans] == list(limits)
    for plan in plans:
        check_plan(case.graph, case.profile, case.links, plan, fast_operands_only=options.fast_operands_only)
    for tighter, looser in pairwise(sorted(plans, key=lambda plan: plan.dram_limit_bytes)):
        assert looser.objective_us <= tighter.objective_us * (1 + 1e-12)
    return plans


@pytest.mark.parametrize(
    ("seed", "optimizer"), [(0, "static"), (0, "synchronous"), (1, "synchronous"), (3, "static"), (0, "all-slow")]
)
def test_optima_of_small_graphs(seed: int, optimizer: str) -> None:
    case = exact_case(seed, kernels=5, alternatives=seed % 4 == 3) if seed % 2 else random_case(seed, kernels=9)
    options = SolveOptions(gap=0.0, additive_tolerance=0.0)
    for plan in swept(case, optimizer, LIMITS, options):
        alone = solve(case.graph, case.profile, case.links, optimizer, Limit.parse(plan.limit), options)
        assert plan.objective_us == pytest.approx(alone.objective_us, rel=1e-9)
        assert plan.status == alone.status


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
def test_plans_of_a_training_step_agree_within_the_gap(optimizer: str) -> None:
    case = training_step_case(layers=3, branches=3)
    for plan in swept(case, optimizer, LIMITS, SolveOptions(gap=1e-2)):
        alone = solve(case.graph, case.profile, case.links, optimizer, Limit.parse(plan.limit), SolveOptions(gap=1e-2))
        assert plan.gap <= 1e-2
        assert plan.bound_us <= alone.objective_us * (1 + 1e-9)
        assert alone.bound_us <= plan.objective_us * (1 + 1e-9)


def test_kernels_that_need_fast_operands() -> None:
    case = random_case(2, kernels=8)
    options = SolveOptions(gap=0.0, fast_operands_only=True)
    plans = swept(case, "synchronous", (Limit(0, 1), Limit(size_bytes=6464)), options)
    assert plans[0].objective_us <= plans[1].objective_us
    with pytest.raises(InfeasibleLimitError, match="limit 1:0"):
        sweep(case.graph, case.profile, case.links, "synchronous", (Limit(0, 1), Limit(1, 0)), options)


def test_no_limits() -> None:
    case = random_case(2)
    assert sweep(case.graph, case.profile, case.links, "static", ()) == ()


def test_a_lost_solver_costs_one_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = random_case(4, kernels=12), []
    original = highs._run_watched

    def hangs_once(solver: Any, deadline_s: float) -> None:
        calls.append(solver)
        if len(calls) == 1:
            raise highs._Hung
        original(solver, deadline_s)

    monkeypatch.setattr(highs, "_run_watched", hangs_once)
    plans = swept(case, "synchronous", (Limit(4, 1), Limit(2, 1), Limit(1, 1)), SolveOptions(gap=0.0))
    assert plans[0].status is Status.TIME_LIMIT
    assert {plan.status for plan in plans[1:]} == {Status.OPTIMAL}
    assert all(solver is not calls[0] for solver in calls[1:])


def test_a_time_limit_for_all_leaves_a_legal_plan_for_each() -> None:
    case = training_step_case(layers=6, branches=3)
    options = SolveOptions(gap=0.0, sweep_s=1e-3)
    placed = sweep_and_pack(case.graph, case.profile, case.links, "synchronous", LIMITS, options)
    for limit, (plan, layout) in zip(LIMITS, placed, strict=True):
        assert plan.limit == limit
        check_plan(case.graph, case.profile, case.links, plan)
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


def test_a_time_limit_of_nothing_is_refused() -> None:
    with pytest.raises(BadInputError, match="sweep_s"):
        SolveOptions(sweep_s=0.0)
