"""The solver finds what trying everything finds."""

from __future__ import annotations

import pytest
from claims import claimed_gap
from exhaustive import optimum_us
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_case

from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(2, 6),
    fast_copies=st.booleans(),
    limit=st.sampled_from([Limit(1, 2), Limit(2, 1), Limit(5, 1)]),
)
def test_optimum_of_small_graphs(seed: int, kernels: int, limit: Limit, optimizer: str, *, fast_copies: bool) -> None:
    case = random_case(seed, kernels, fast_copies=fast_copies)
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, EXACT)
    check_plan(case.graph, case.profile, case.links, plan)
    expected = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.objective_us == pytest.approx(expected, rel=1e-9)
    assert plan.bound_us <= expected * (1 + 1e-9)
    assert claimed_gap(plan) < 1e-6


def test_the_random_graphs_exercise_moves() -> None:
    case = random_case(3, kernels=6)
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1), EXACT)
    assert plan.moves
    assert plan.objective_us == pytest.approx(optimum_us(case, plan.dram_limit_bytes, moves=True), rel=1e-9)
