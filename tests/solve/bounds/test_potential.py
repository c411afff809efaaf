"""Bounds on what recomputation and other orders could save: valid, and as expected on steps done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, StepBuilder, exact_case, make_links, random_case, training_step_case

from autotm.model.errors import BadInputError
from autotm.model.graph import DEFAULT_IMPLEMENTATION, all_fast, configuration
from autotm.model.limit import Limit
from autotm.model.profile import Profile, Timing
from autotm.solve.choices import flows_by_use
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.potential import potential
from autotm.solve.prices import EnginePrices, HoldingCosts, Prices
from autotm.solve.problem import Problem
from autotm.solve.residencies import PricedResidencies, best_value

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


def problem_of(case: Case, limit: Limit) -> Problem:
    return Problem(case.graph, case.profile, case.links, limit, EXACT)


@given(seed=st.integers(0, 2**31 - 1))
def test_without_recomputation_holding_is_that_of_the_certificate(seed: int) -> None:
    problem = problem_of(random_case(seed, kernels=9), Limit(2, 1))
    flows, kernels = flows_by_use(problem), len(problem.graph.kernels)
    prices = np.random.default_rng(seed).exponential(1e-3, kernels)
    priced_residencies = PricedResidencies(flows, np.full(len(flows), math.inf), problem.limit_bytes, kernels)
    rents = HoldingCosts(Prices(prices, (), EnginePrices.none()), problem.limit_bytes)
    expected = sum(best_value(flow, rents.charges(flow)) for flow in flows)
    cheapest = priced_residencies.cheapest(prices)
    value, used = float(cheapest.cost_us.sum()), cheapest.used_bytes
    assert value == pytest.approx(expected)
    nudged = prices + 1e-9
    assert priced_residencies.cheapest(nudged).cost_us.sum() - value == pytest.approx(
        1e-9 * used.sum(), rel=1e-3, abs=1e-9
    ), "its slope"


@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([Limit(1, 1), Limit(4, 1)]))
def test_more_freedom_never_raises_a_bound(seed: int, limit: Limit) -> None:
    case = random_case(seed, kernels=9)
    problem = problem_of(case, limit)
    plan = solve(case.graph, case.profile, case.links, "synchronous", limit, EXACT)
    found = potential(problem, plan)
    assert 0 < found.recomputation_us <= found.bound_us
    assert 0 < found.any_order_us <= found.objective_us * (1 + 1e-9)
    assert 0 <= found.gain(found.recomputation_us) < 1


def hand_made(producer_us: int) -> Case:
    """`early` is written first and read last; between, `big` needs all the fast memory that `early` would have."""
    builder = StepBuilder()
    builder.argument("data", 16)
    builder.kernel(["data"], {"early": 1024}, {})
    builder.kernel(["data"], {"big": 1024}, {})
    builder.kernel(["big"], {"small": 16}, {})
    builder.kernel(["early", "small"], {"last": 16}, {})
    graph = builder.graph()
    timings = {}
    for index, kernel in enumerate(graph.kernels):
        base = 1000 * (producer_us if index == 0 else 10)
        timings[kernel.identity, DEFAULT_IMPLEMENTATION, all_fast(kernel)] = Timing(base, base, base, base, 3)
        for name in graph.slots_of(kernel):
            slow = base + (1_000_000 if graph.by_name[name].size_bytes > 64 else 0)
            key = kernel.identity, DEFAULT_IMPLEMENTATION, configuration(graph, kernel, {name})
            timings[key] = Timing(slow, slow, slow, slow, 3)
    return Case(graph, Profile("", timings, {}), make_links(0.1, 0.1))


@given(seed=st.integers(0, 2**31 - 1), alternatives=st.booleans())
def test_tables_and_implementations_are_priced_too(seed: int, *, alternatives: bool) -> None:
    case = exact_case(seed, alternatives=alternatives)
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(3, 1), EXACT)
    found = potential(problem_of(case, Limit(3, 1)), plan)
    assert 0 < found.recomputation_us <= found.bound_us
    assert 0 < found.any_order_us <= found.objective_us * (1 + 1e-9)


LIMIT = Limit(size_bytes=4096 + 128)


@pytest.mark.parametrize("producer_us", [5, 20])
def test_computing_again_instead_of_moving(producer_us: int) -> None:
    case = hand_made(producer_us)
    plan = solve(case.graph, case.profile, case.links, "synchronous", LIMIT, EXACT)
    copies_us = plan.objective_us - producer_us - 30
    assert len(plan.moves) == 2
    assert copies_us > 80
    found = potential(problem_of(case, LIMIT), plan)
    assert found.recomputation_us == pytest.approx(plan.objective_us - copies_us + producer_us, rel=0.01)


def test_computing_again_does_not_pay_where_it_takes_longer_than_moving() -> None:
    case = hand_made(500)
    plan = solve(case.graph, case.profile, case.links, "synchronous", LIMIT, EXACT)
    found = potential(problem_of(case, LIMIT), plan)
    assert found.recomputation_us == pytest.approx(plan.bound_us, rel=0.01)


def test_in_any_order_operands_that_do_not_fit_are_slow() -> None:
    case = hand_made(5)
    plan = solve(case.graph, case.profile, case.links, "synchronous", LIMIT, EXACT)
    assert potential(problem_of(case, LIMIT), plan).any_order_us == pytest.approx(35.0), "every kernel fits by itself"
    half = Limit(size_bytes=2048)
    small = solve(case.graph, case.profile, case.links, "synchronous", half, EXACT)
    assert potential(problem_of(case, half), small).any_order_us > 35.0 + 4 * 400


def test_a_step_of_some_size() -> None:
    case = training_step_case(20)
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(4, 1), SolveOptions(gap=0.01))
    found = potential(problem_of(case, Limit(4, 1)), plan)
    assert found.any_order_us <= found.recomputation_us <= plan.bound_us


def test_a_plan_without_prices_is_refused() -> None:
    case = random_case(1)
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(1, 1), EXACT)
    with pytest.raises(BadInputError, match="'synchronous' plan"):
        potential(problem_of(case, Limit(1, 1)), replace(plan, certificate=None))
