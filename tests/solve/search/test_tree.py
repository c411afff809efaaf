"""The tree proves what branch and bound only claims, and no more than is true."""

from __future__ import annotations

import pytest
from exhaustive import exact_optimum_us, optimum_us
from exhaustive_async_moves import optimum_us as flying_optimum_us
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, training_step_case, with_engines

from autotm.check.plan import check_plan
from autotm.model.certificate import Branch, Leaf, WindowBranch, WorkspaceBranch
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.solve import integer_program
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, sweep
from autotm.solve.tree import Tree

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0, additive_tolerance=0.0)
PATCHED = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""What a fixture patches may stay so for all examples."""


@pytest.fixture
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No knapsack rows, which prove most small steps by themselves."""
    monkeypatch.setattr(integer_program, "cut", lambda *_: None)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, uncut: None) -> None:
    """Nobody searches but the tree."""
    del uncut
    monkeypatch.setattr(integer_program, "_search_near", lambda *_: True)
    monkeypatch.setattr(integer_program, "_search_all", lambda *_: True)


def plan_of(case: Case, optimizer: str, limit: Limit, options: SolveOptions = EXACT) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, options)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


def kinds(plan: Plan) -> set[type]:
    assert plan.certificate is not None
    return {type(node) for node in plan.certificate.tree}


@PATCHED
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(2, 6),
    limit=st.sampled_from([Limit(1, 2), Limit(2, 1), Limit(5, 1)]),
)
def test_it_finds_and_proves_the_optimum_by_itself(seed: int, kernels: int, limit: Limit, optimizer: str) -> None:
    case = random_case(seed, kernels)
    plan = plan_of(case, optimizer, limit)
    optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.status is Status.OPTIMAL
    assert plan.solver_bound_us is None
    assert plan.bound_us <= optimum * (1 + 1e-9)
    assert plan.objective_us == pytest.approx(optimum, rel=1e-9)


@PATCHED
@pytest.mark.usefixtures("alone")
@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(2, 4),
    optimizer=st.sampled_from(["static", "synchronous"]),
    limit=st.sampled_from([Limit(1, 1), Limit(5, 1)]),
)
def test_with_tables_and_implementations_it_proves_no_more_than_is_true(
    seed: int, kernels: int, optimizer: str, limit: Limit
) -> None:
    case = exact_case(seed, kernels)
    plan = plan_of(case, optimizer, limit)
    optimum = exact_optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.bound_us <= optimum * (1 + 1e-9) <= plan.objective_us * (1 + 2e-9)


@pytest.mark.usefixtures("uncut")
# Plans of these have asynchronous moves.
@pytest.mark.parametrize("seed", [3, 13, pytest.param(29, marks=pytest.mark.slow)])
def test_beside_kernels_it_proves_no_more_than_is_true(seed: int) -> None:
    case = with_engines(random_case(seed, kernels=6 + seed % 2), 1.0)
    plan = plan_of(case, "asynchronous", Limit(1, 1))
    optimum, _ = flying_optimum_us(case, plan.dram_limit_bytes)
    assert plan.bound_us <= optimum * (1 + 1e-9) <= plan.objective_us * (1 + 2e-9)


@pytest.mark.usefixtures("uncut")
def test_these_steps_need_trees_of_every_kind() -> None:
    plans = [plan_of(random_case(seed, kernels=6), "synchronous", Limit(2, 1)) for seed in range(4)]
    plans += [plan_of(exact_case(seed, kernels=4), "static", Limit(5, 1)) for seed in range(4)]
    plans += [plan_of(with_engines(random_case(13, kernels=7), 1.0), "asynchronous", Limit(1, 1))]
    assert {Branch, Leaf, WindowBranch, WorkspaceBranch} <= set().union(*map(kinds, plans))


def test_what_the_roots_prices_prove_needs_no_tree() -> None:
    plan = plan_of(training_step_case(layers=4, branches=3), "synchronous", Limit(4, 1), SolveOptions(gap=0.2))
    assert plan.certificate is not None
    assert plan.certificate.tree == (Leaf(0),)


@pytest.mark.usefixtures("uncut")
def test_a_claim_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch and bound is done; the tree still tries to prove it, and the plan says what was not."""
    grown = []
    monkeypatch.setattr(Tree, "grow", lambda *_: grown.append(True))
    plan = plan_of(training_step_case(layers=4, branches=3), "synchronous", Limit(2, 1), SolveOptions(gap=0.0))
    assert len(grown) == 2
    assert plan.status is Status.ABOVE_GAP
    assert plan.solver_gap is not None
    assert plan.solver_gap < plan.gap


def test_a_tree_goes_on_where_knapsack_rows_end() -> None:
    plan = plan_of(random_case(23, kernels=12), "synchronous", Limit(2, 1), SolveOptions(gap=0.0))
    assert plan.certificate is not None
    assert plan.certificate.cuts
    assert Branch in kinds(plan)
    assert plan.gap < 1e-9


def test_a_limit_knows_nothing_of_the_tree_of_the_one_before() -> None:
    case = random_case(4, kernels=6)
    limits = (Limit(5, 1), Limit(2, 1), Limit(1, 2))
    for limit, plan in zip(
        limits, sweep(case.graph, case.profile, case.links, "synchronous", limits, EXACT), strict=True
    ):
        check_plan(case.graph, case.profile, case.links, plan)
        assert plan.objective_us == pytest.approx(plan_of(case, "synchronous", limit).objective_us)
        assert plan.gap < 1e-6
