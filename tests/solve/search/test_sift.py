"""Sifting finds what the whole relaxation finds, and its prices prove what they say."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from claims import claimed_gap
from exhaustive import optimum_us
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, training_step_case

from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve import sift
from autotm.solve.choices import Choices, TensorChoices, flows_by_use
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, sweep
from autotm.solve.prices import EnginePrices, HoldingCosts, Prices
from autotm.solve.problem import Problem
from autotm.solve.reductions import reduce
from autotm.solve.residencies import PricedResidencies, best_value, occupy
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile

OPTIONS = SolveOptions(gap=5e-3, time_limit_s=200.0)


def deep_case(kernels: int, seed: int = 0) -> Case:
    graph = deepened(training_step_case(layers=4, branches=3, seed=seed).graph, kernels)
    return Case(graph, modelled_profile(graph, noise=0.3, seed=seed), modelled_links())


def plan_of(case: Case, limit: Limit, optimizer: str = "synchronous", options: SolveOptions = OPTIONS) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, options)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


PATCHED = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""What a fixture patches may stay so for all examples."""


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is large, and a sample is a tenth of what it is."""
    monkeypatch.setattr(sift, "_LARGE", 0)
    monkeypatch.setattr(sift, "_SAMPLE", 60)


@pytest.mark.parametrize(
    ("optimizer", "limit"),
    [
        ("synchronous", Limit(5, 1)),
        ("static", Limit(1, 2)),
        pytest.param("static", Limit(5, 1), marks=pytest.mark.slow),
        pytest.param("synchronous", Limit(2, 1), marks=pytest.mark.slow),
        pytest.param("synchronous", Limit(1, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_both_ways_agree_within_their_gaps(
    limit: Limit, optimizer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = deep_case(300)
    whole = plan_of(case, limit, optimizer)
    monkeypatch.setattr(sift, "_LARGE", 0)
    monkeypatch.setattr(sift, "_SAMPLE", 60)
    with caplog.at_level(logging.INFO):
        sifted = plan_of(case, limit, optimizer)
    assert "sifted" in caplog.text
    assert sifted.gap <= OPTIONS.gap
    assert sifted.bound_us <= whole.objective_us * (1 + 1e-9)
    assert whole.bound_us <= sifted.objective_us * (1 + 1e-9)


@PATCHED
@pytest.mark.usefixtures("always")
@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(3, 6),
    optimizer=st.sampled_from(["static", "synchronous"]),
    limit=st.sampled_from([Limit(3, 1), Limit(1, 1), Limit(1, 2)]),
)
def test_bounds_hold_on_small_graphs(seed: int, kernels: int, optimizer: str, limit: Limit) -> None:
    case = random_case(seed, kernels)
    plan = plan_of(case, limit, optimizer)
    optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.bound_us <= optimum * (1 + 1e-9) <= plan.objective_us * (1 + 2e-9)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", range(2))
def test_tabled_kernels_stay_in_the_relaxation(seed: int) -> None:
    case = exact_case(seed, kernels=8)
    plan = plan_of(case, Limit(2, 1), options=SolveOptions(gap=0.05, additive_tolerance=0.5))
    assert claimed_gap(plan) <= 0.05
    assert plan.gap <= 0.066, "the certificate of the second step proves 6.56 %"


@pytest.mark.usefixtures("always")
def test_a_sweep_takes_each_limit_from_the_one_before() -> None:
    case = deep_case(300)
    plans = sweep(case.graph, case.profile, case.links, "synchronous", (Limit(1, 1), Limit(9, 1), Limit(4, 1)), OPTIONS)
    for plan in plans:
        check_plan(case.graph, case.profile, case.links, plan)
        assert plan.gap <= OPTIONS.gap
    assert plans[0].objective_us <= plans[2].objective_us <= plans[1].objective_us


@pytest.mark.usefixtures("always")
def test_restrictions_that_it_does_not_know_are_left_to_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    case = random_case(3, kernels=7)
    options = SolveOptions(gap=0.0, fast_operands_only=True)
    with caplog.at_level(logging.INFO):
        solve(case.graph, case.profile, case.links, "synchronous", Limit(0, 1), options)
    assert "sifted" not in caplog.text


def test_small_steps_are_not_sifted() -> None:
    case = deep_case(500)
    problem = Problem(case.graph, case.profile, case.links, Limit(4, 1), OPTIONS)
    assert not sift.is_large(reduce(Choices(flows_by_use(problem)), problem.limit_bytes, len(case.graph.kernels)))


def _priced_residencies(seed: int) -> tuple[tuple[TensorChoices, ...], int, PricedResidencies, np.random.Generator]:
    """Flows of a random step, its kernels, and both as what rents fast memory."""
    case = random_case(seed, kernels=9)
    problem = Problem(case.graph, case.profile, case.links, Limit(2, 1), OPTIONS)
    flows, kernels = flows_by_use(problem), len(case.graph.kernels)
    priced_residencies = PricedResidencies(flows, np.full(len(flows), np.inf), problem.limit_bytes, kernels)
    return flows, kernels, priced_residencies, np.random.default_rng(seed)


@given(seed=st.integers(0, 2**31 - 1))
def test_cheapest_residencies_hold_what_they_say(seed: int) -> None:
    flows, kernels, priced_residencies, draw = _priced_residencies(seed)
    prices = draw.exponential(1e-3, kernels)
    cheapest = priced_residencies.cheapest(prices)
    chosen = draw.random(len(flows)) < 0.5
    residencies = priced_residencies.residencies(cheapest, range(len(flows)))
    used = np.zeros((len(flows), kernels), np.int64)
    for index, residency in residencies.items():
        occupy(used[index], flows[index], residency)
    assert np.array_equal(used.sum(axis=0), cheapest.used_bytes)
    assert np.array_equal(used[chosen].sum(axis=0), priced_residencies.used_bytes(cheapest, chosen))
    assert np.array_equal(used.astype(bool)[:, 3], priced_residencies.holders(cheapest, 3))
    assert priced_residencies.holding_us(cheapest, prices) == pytest.approx(used @ prices)
    again = priced_residencies.cheapest(prices * 50)
    moved = [
        index for index in residencies if priced_residencies.residencies(again, [index])[index] != residencies[index]
    ]
    assert moved == np.flatnonzero(again.signature != cheapest.signature).tolist()


@given(seed=st.integers(0, 2**31 - 1))
def test_mixed_residencies_are_those_of_either(seed: int) -> None:
    flows, kernels, priced_residencies, draw = _priced_residencies(seed)
    prices = draw.exponential(1e-3, kernels)
    cheap, dear = priced_residencies.cheapest(prices), priced_residencies.cheapest(prices * 50)
    chosen = draw.random(len(flows)) < 0.5
    mixed = priced_residencies.mixed(cheap, dear, chosen)
    residencies = priced_residencies.residencies(mixed, range(len(flows)))
    assert residencies == {
        index: priced_residencies.residencies(cheap if chosen[index] else dear, [index])[index]
        for index in range(len(flows))
    }
    used = np.zeros(kernels, np.int64)
    for index, residency in residencies.items():
        occupy(used, flows[index], residency)
    assert np.array_equal(used, mixed.used_bytes)
    assert np.array_equal(np.where(chosen, cheap.signature, dear.signature), mixed.signature)


@given(seed=st.integers(0, 2**31 - 1))
def test_cheapest_residencies_keep_the_rules_of_their_flows(seed: int) -> None:
    case, draw = random_case(seed, kernels=9), np.random.default_rng(seed)
    problem = Problem(case.graph, case.profile, case.links, Limit(5, 1), OPTIONS)
    kernels = len(case.graph.kernels)
    flows = reduce(Choices(flows_by_use(problem)), problem.limit_bytes, kernels).choices.flows
    prices = draw.exponential(1e-3, kernels) * (draw.random(kernels) < 0.5)
    cheapest = PricedResidencies(flows, np.full(len(flows), np.inf), problem.limit_bytes, kernels).cheapest(prices)
    rents = HoldingCosts(Prices(prices, (), EnginePrices.none()), problem.limit_bytes)
    assert cheapest.cost_us == pytest.approx([best_value(flow, rents.charges(flow)) for flow in flows])
