"""Knapsack rows: true for every plan, found where a solution breaks them, worth it where few tensors fill the limit."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import highspy
import numpy as np
import pytest
from checked_plans import solved, swept
from exhaustive import optimum_us
from faults import refused
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import (
    Case,
    StepBuilder,
    make_links,
    random_case,
    random_profile,
    training_step_case,
    with_engines,
)

from autotm.check.fault import Fault
from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.model.plan import Cut, Plan, Status
from autotm.solve.cuts import broken
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.prices import Fitting

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0, additive_tolerance=0.0)
FIRST = SolveOptions(gap=0.99, additive_tolerance=0.0)
"""Ends at the first plan: no row is ever added."""


def priced(plan: Plan) -> tuple[Cut, ...]:
    """Weights with prices."""
    return plan.certificate.cuts


def crowded_case() -> Case:
    """Five tensors of one size live together."""
    builder = StepBuilder()
    for index in range(5):
        builder.kernel([], {f"t{index}": 160})
    builder.kernel([f"t{index}" for index in range(5)], {})
    graph = builder.graph()
    return Case(graph, random_profile(graph, 0, 0.0), make_links(29.0, 12.0))


@pytest.mark.parametrize("fitting", [1, 2, 3, 4])
def test_equal_tensors_need_no_branching(fitting: int) -> None:
    case = crowded_case()
    limit = Limit(size_bytes=640 * fitting + 576)
    loose = solve(*case, "static", limit, FIRST)
    # At gap 0 the last bit of the bound decides whether HiGHS is asked for more.
    plan = solved(case, "static", limit, replace(EXACT, gap=1e-12))
    assert loose.gap > 1e-3
    assert plan.status is Status.OPTIMAL
    assert priced(plan)
    assert plan.objective_us == pytest.approx(optimum_us(case, limit.fast_bytes(0), moves=False), rel=1e-9)


@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(3, 6),
    optimizer=st.sampled_from(["static", "synchronous"]),
    limit=st.sampled_from([Limit(5, 1), Limit(3, 1), Limit(2, 1)]),
)
def test_prices_prove_no_more_than_is_true_and_no_less_than_without(
    seed: int, kernels: int, optimizer: str, limit: Limit
) -> None:
    case = random_case(seed, kernels)
    plan, first = (solved(case, optimizer, limit, options) for options in (EXACT, FIRST))
    optimum = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert first.bound_us <= plan.bound_us * (1 + 1e-9) <= optimum * (1 + 2e-9)


CUT = Cut(("t0", "t1"), (1, 1), (5,), (1e-3,))
BROKEN = [
    {"prices_us": (-1.0,)},
    {"prices_us": (float("nan"),)},
    {"prices_us": (1.0, 1.0)},
    {"kernels": (99,)},
    {"kernels": (3, 3), "prices_us": (1.0, 1.0)},
    {"kernels": (), "prices_us": ()},
    {"weights": (1, 0)},
    {"weights": (1, -1)},
    {"weights": (1,)},
    {"weights": (1, 10**6)},
    {"tensors": ("t0", "t0")},
    {"tensors": ("t0", "nobody")},
]


@pytest.fixture(scope="module")
def crowded() -> tuple[Case, Plan]:
    case = crowded_case()
    return case, solve(*case, "static", Limit(size_bytes=640 + 576), EXACT)


@pytest.mark.parametrize("changes", BROKEN, ids=str)
def test_broken_cuts_are_refused(crowded: tuple[Case, Plan], changes: dict[str, Any]) -> None:
    case, plan = crowded
    assert priced(plan)
    certificate = replace(plan.certificate, cuts=(replace(CUT, **changes),))
    with refused(Fault.BOUND if changes.get("kernels") == () else Fault.CERTIFICATE):
        check_plan(*case, replace(plan, certificate=certificate))


def test_a_sweep_forgets_the_rows_of_the_limit_before() -> None:
    case = training_step_case(layers=3, branches=3)
    limits = (Limit(59, 1), Limit(19, 1), Limit(4, 1))
    options = SolveOptions(gap=2e-3)
    plans = swept(case, "synchronous", limits, options)
    assert any(priced(plan) for plan in plans)
    for plan in plans:
        alone = solve(*case, "synchronous", Limit.parse(plan.limit), options)
        assert plan.gap <= 2e-3
        assert plan.bound_us <= alone.objective_us * (1 + 1e-9)
        assert alone.bound_us <= plan.objective_us * (1 + 1e-9)


def test_asynchronous_plans_get_them_too() -> None:
    case = with_engines(training_step_case(layers=2, branches=3))
    assert priced(solved(case, "asynchronous", Limit(19, 1), SolveOptions(gap=1e-4, time_limit_s=200.0)))


def sets_of(sizes: list[int], limit_bytes: int) -> list[tuple[int, ...]]:
    chosen = product((0, 1), repeat=len(sizes))
    return [each for each in chosen if sum(s for s, inside in zip(sizes, each, strict=True) if inside) <= limit_bytes]


def weight(weights: dict[int, int], chosen: tuple[float, ...] | tuple[int, ...]) -> float:
    return sum(each * chosen[item] for item, each in weights.items())


def is_mixture(values: list[float], sets: list[tuple[int, ...]]) -> bool:
    """Whether values are at most a convex combination of sets, by a linear program."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.addVars(len(sets), np.zeros(len(sets)), np.ones(len(sets)))
    everything = np.arange(len(sets), dtype=np.int32)
    solver.addRow(1.0, 1.0, len(sets), everything, np.ones(len(sets)))
    for item, value in enumerate(values):
        solver.addRow(value, highspy.kHighsInf, len(sets), everything, np.array([float(one[item]) for one in sets]))
    solver.run()
    return bool(solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


@given(seed=st.integers(0, 2**31 - 1))
def test_inequalities_hold_for_all_that_fits_and_are_broken_where_values_do_not(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 8)
    sizes = [64 * draw.randint(1, 12) for _ in range(count)]
    limit_bytes = draw.randint(max(sizes), max(max(sizes) + 1, sum(sizes)))
    values = [draw.choice([0.0, 1.0, draw.random(), draw.random()]) for _ in range(count)]
    whole = sum(size for size, value in zip(sizes, values, strict=True) if value == 1.0)
    if whole > limit_bytes:
        values = [min(value, 0.9) for value in values]
    sets = sets_of(sizes, limit_bytes)
    inequalities = list(broken(np.array(values), np.array(sizes), limit_bytes, {}))
    for weights in inequalities:
        assert weight(weights, tuple(values)) > max(weight(weights, chosen) for chosen in sets) > 0
    if is_mixture(values, sets):
        assert not inequalities
    else:
        # What is broken by less than its share of a row is left.
        shrunk = [value * (1 - 3e-4) if value < 1 else value for value in values]
        assert inequalities or is_mixture(shrunk, sets)


@given(seed=st.integers(0, 2**31 - 1))
def test_what_fits_is_what_trying_all_sets_says(seed: int) -> None:
    draw = random.Random(seed)
    items = [(draw.randint(1, 6), draw.randint(1, 50)) for _ in range(draw.randint(1, 9))]
    limit_bytes = draw.randint(1, 150)
    fitting = Fitting(limit_bytes)
    for each, size in items:
        fitting.add(each, size)
    rooms = np.array([-5, 0, *sorted(draw.randint(0, limit_bytes) for _ in range(5)), limit_bytes])
    for room, most in zip(rooms.tolist(), fitting.most_in_each(rooms).tolist(), strict=True):
        chosen = sets_of([size for _, size in items], max(room, 0))
        assert most == max(sum(each for (each, _), inside in zip(items, one, strict=True) if inside) for one in chosen)
