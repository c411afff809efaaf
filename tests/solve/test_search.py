"""Repair, sifting and bounds beyond placement: bytes are kept, plans never get slower, prices prove what they say."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import numpy as np
import pytest
from checked_plans import claimed_gap, solved, swept
from exhaustive import optimum_us
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import (
    Case,
    StepBuilder,
    exact_case,
    make_links,
    one_slow_profile,
    random_case,
    training_step_case,
)

from autotm.model.errors import BadInputError
from autotm.model.limit import Limit
from autotm.model.plan import Status
from autotm.solve import sift
from autotm.solve.choices import Choices, TensorChoices, flows_by_use, flows_for_life
from autotm.solve.local_search import eject
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.plans import PlanBuilder
from autotm.solve.potential import potential
from autotm.solve.prices import EnginePrices, HoldingCosts, Prices
from autotm.solve.problem import Problem
from autotm.solve.reductions import reduce
from autotm.solve.residencies import PricedResidencies, best_value, occupy
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile


def repaired(seed: int, *, moves: bool) -> tuple[Problem, PlanBuilder]:
    """A plan made without any solver, from tables and implementations."""
    case = exact_case(seed, kernels=8)
    problem = Problem(*case, Limit(3, 1), SolveOptions(additive_tolerance=0.0))
    flows = flows_by_use(problem) if moves else flows_for_life(problem)
    repair = PlanBuilder(Choices(flows, problem.tabulation.tables), problem.limit_bytes, len(case.graph.kernels))
    repair.complete()
    return problem, repair


def left_bytes(problem: Problem, repair: PlanBuilder) -> np.ndarray:
    """Fast bytes free during each kernel, counted anew."""
    used = np.zeros(len(problem.graph.kernels), np.int64)
    for index, residency in repair.residencies.items():
        occupy(used, repair.flows[index], residency)
    for table, entry in zip(repair.tables, repair.entries, strict=True):
        used[table.kernel] += table.fast_bytes[entry]
    return problem.limit_bytes - used


def consistent(repair: PlanBuilder) -> bool:
    """Whether every table's entry has the tiers of its operands."""
    for table, entry, operands in zip(repair.tables, repair.entries, repair.choices.operands, strict=True):
        for operand, (index, gadget) in enumerate(operands):
            if bool(table.slow[entry] >> operand & 1) == repair.residencies[index].fast[gadget]:
                return False
    return True


@given(seed=st.integers(0, 2**31 - 1), moves=st.booleans())
def test_every_step_keeps_bytes_and_tiers_and_never_gets_slower(seed: int, *, moves: bool) -> None:
    problem, repair = repaired(seed, moves=moves)
    draw = random.Random(seed)
    before_us = repair.cost_us
    for step in (repair.improve, lambda: eject(repair)):
        step()
        assert repair.cost_us <= before_us + 1e-3
        before_us = repair.cost_us
    for _ in range(30):
        group = draw.sample(range(len(repair.flows)), min(len(repair.flows), draw.randint(1, 4)))
        residencies, entries = dict(repair.residencies), list(repair.entries)
        if not repair.exchange(group):
            assert (repair.residencies, repair.entries) == (residencies, entries), "a refused exchange is undone"
        assert repair.cost_us <= before_us + 1e-3
        before_us = repair.cost_us
    assert (repair.left == left_bytes(problem, repair)).all()
    assert repair.left.min() >= 0
    assert consistent(repair)


def test_exchanges_find_what_single_insertions_miss() -> None:
    gains = []
    for seed in range(12):
        _, repair = repaired(seed, moves=True)
        repair.improve()
        before_us = repair.cost_us
        eject(repair)
        gains.append(before_us - repair.cost_us)
    assert max(gains) > 1e-3


OPTIONS = SolveOptions(gap=5e-3, time_limit_s=200.0)


def deep_case(kernels: int, seed: int = 0) -> Case:
    graph = deepened(training_step_case(layers=4, branches=3, seed=seed).graph, kernels)
    return Case(graph, modelled_profile(graph, noise=0.3, seed=seed), modelled_links())


def test_a_relaxation_is_solved_though_the_search_beyond_it_has_no_time() -> None:
    case = deep_case(400)
    briefly, relaxed = (
        solve(*case, "synchronous", Limit(4, 1), SolveOptions(gap=0.0, **limits))
        for limits in ({"time_limit_s": 1e-9}, {"beyond_s": 1e-9})
    )
    assert briefly.status is relaxed.status is Status.TIME_LIMIT
    assert briefly.bound_us < 0.999 * relaxed.bound_us
    assert relaxed.gap < 0.01


PATCHED = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""Settings for tests with fixtures that patch: the patches may stay for all examples."""


def sift_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is large, and a sample is a tenth of what it is."""
    monkeypatch.setattr(sift, "_LARGE", 0)
    monkeypatch.setattr(sift, "_SAMPLE", 60)


always = pytest.fixture(sift_everything)


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
    with caplog.at_level(logging.INFO):
        whole = solved(case, optimizer, limit, OPTIONS)
    assert "sifted" not in caplog.text, "small steps are not"
    sift_everything(monkeypatch)
    with caplog.at_level(logging.INFO):
        sifted = solved(case, optimizer, limit, OPTIONS)
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
    plan = solved(case, optimizer, limit, OPTIONS)
    optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.bound_us <= optimum * (1 + 1e-9) <= plan.objective_us * (1 + 2e-9)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", range(2))
def test_tabled_kernels_stay_in_the_relaxation(seed: int) -> None:
    case = exact_case(seed, kernels=8)
    plan = solved(case, "synchronous", Limit(2, 1), SolveOptions(gap=0.05, additive_tolerance=0.5))
    assert claimed_gap(plan) <= 0.05
    assert plan.gap <= 0.066, "the certificate of the second step proves 6.56 %"


@pytest.mark.usefixtures("always")
def test_a_sweep_takes_each_limit_from_the_one_before() -> None:
    plans = swept(deep_case(300), "synchronous", (Limit(1, 1), Limit(9, 1), Limit(4, 1)), OPTIONS)
    assert max(plan.gap for plan in plans) <= OPTIONS.gap
    assert plans[0].objective_us <= plans[2].objective_us <= plans[1].objective_us


@pytest.mark.usefixtures("always")
def test_restrictions_that_it_does_not_know_are_left_to_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    case = random_case(3, kernels=7)
    options = SolveOptions(gap=0.0, fast_operands_only=True)
    with caplog.at_level(logging.INFO):
        solve(*case, "synchronous", Limit(0, 1), options)
    assert "sifted" not in caplog.text


def _priced_residencies(seed: int) -> tuple[tuple[TensorChoices, ...], int, PricedResidencies, np.random.Generator]:
    """Flows of a random step, its number of kernels, its residencies with prices, and a generator."""
    case = random_case(seed, kernels=9)
    problem = Problem(*case, Limit(2, 1), OPTIONS)
    flows, kernels = flows_by_use(problem), len(case.graph.kernels)
    return flows, kernels, PricedResidencies(flows, problem.limit_bytes, kernels), np.random.default_rng(seed)


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
    others = priced_residencies.residencies(again, range(len(flows)))
    moved = [others[index] != residencies[index] for index in range(len(flows))]
    assert moved == priced_residencies.differ(again, cheapest).tolist()


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


@given(seed=st.integers(0, 2**31 - 1))
def test_cheapest_residencies_keep_the_rules_of_their_flows(seed: int) -> None:
    case, draw = random_case(seed, kernels=9), np.random.default_rng(seed)
    problem = Problem(*case, Limit(5, 1), OPTIONS)
    kernels = len(case.graph.kernels)
    flows = reduce(Choices(flows_by_use(problem)), problem.limit_bytes, kernels).choices.flows
    prices = draw.exponential(1e-3, kernels) * (draw.random(kernels) < 0.5)
    cheapest = PricedResidencies(flows, problem.limit_bytes, kernels).cheapest(prices)
    rents = HoldingCosts(Prices(prices, (), EnginePrices.none()), problem.limit_bytes)
    assert cheapest.cost_us == pytest.approx([best_value(flow, rents.charges(flow)) for flow in flows])


EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


def problem_of(case: Case, limit: Limit) -> Problem:
    return Problem(*case, limit, EXACT)


CASES = {
    "additive": lambda seed: random_case(seed, kernels=9),
    "tables": lambda seed: exact_case(seed, alternatives=False),
    "implementations": exact_case,
}


@pytest.mark.parametrize("kind", CASES)
@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([Limit(1, 1), Limit(3, 1)]))
def test_more_freedom_never_raises_a_bound(seed: int, limit: Limit, kind: str) -> None:
    case = CASES[kind](seed)
    bounds = potential(problem_of(case, limit), solve(*case, "synchronous", limit, EXACT))
    assert 0 < bounds.recomputation_us <= bounds.bound_us
    assert 0 < bounds.any_order_us <= bounds.objective_us * (1 + 1e-9)
    assert 0 <= bounds.gain(bounds.recomputation_us) < 1


def hand_made(producer_us: int) -> Case:
    """`early` is written first and read last; between, `big` needs all the fast memory that `early` would have."""
    builder = StepBuilder()
    builder.argument("data", 16)
    builder.kernel(["data"], {"early": 1024}, {})
    builder.kernel(["data"], {"big": 1024}, {})
    builder.kernel(["big"], {"small": 16}, {})
    builder.kernel(["early", "small"], {"last": 16}, {})
    graph = builder.graph()
    profile = one_slow_profile(
        graph,
        lambda kernel: 1000 * (producer_us if kernel is graph.kernels[0] else 10),
        lambda _, name: 1_000_000 if graph.by_name[name].size_bytes > 64 else 0,
    )
    return Case(graph, profile, make_links(0.1, 0.1))


LIMIT = Limit(size_bytes=4096 + 128)


@pytest.mark.parametrize("producer_us", [5, 20, 500])
def test_computing_again_instead_of_moving_pays_where_it_takes_less_time(producer_us: int) -> None:
    case = hand_made(producer_us)
    plan = solve(*case, "synchronous", LIMIT, EXACT)
    copies_us = plan.objective_us - producer_us - 30
    assert len(plan.moves) == 2
    assert copies_us > 80
    expected_us = min(plan.objective_us - copies_us + producer_us, plan.bound_us)
    assert potential(problem_of(case, LIMIT), plan).recomputation_us == pytest.approx(expected_us, rel=0.01)


def test_in_any_order_operands_that_do_not_fit_are_slow() -> None:
    case = hand_made(5)
    plan = solve(*case, "synchronous", LIMIT, EXACT)
    assert potential(problem_of(case, LIMIT), plan).any_order_us == pytest.approx(35.0), "every kernel fits by itself"
    half = Limit(size_bytes=2048)
    small = solve(*case, "synchronous", half, EXACT)
    assert potential(problem_of(case, half), small).any_order_us > 35.0 + 4 * 400


def test_a_plan_without_prices_is_refused() -> None:
    case = random_case(1)
    plan = solve(*case, "synchronous", Limit(1, 1), EXACT)
    with pytest.raises(BadInputError, match="'synchronous' plan"):
        potential(problem_of(case, Limit(1, 1)), replace(plan, certificate=None))
