"""The solver finds what trying everything finds."""

from __future__ import annotations

import pytest
from exhaustive import optimum_us
from random_graphs import random_case

from autotm.check import check_plan
from autotm.model.step.limit import Limit
from autotm.solve import SolveOptions, solve

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("seed", range(24))
def test_optimum_of_small_graphs(seed: int, optimizer: str) -> None:
    case = random_case(seed, kernels=2 + seed % 5, fast_copies=seed % 4 != 0)
    assert len(case.graph.kernels) <= 7
    for limit in (Limit(1, 2), Limit(2, 1), Limit(5, 1)):
        plan = solve(case.graph, case.profile, case.links, optimizer, limit, EXACT)
        check_plan(case.graph, case.profile, case.links, plan)
        expected = optimum_us(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
        assert plan.objective_us == pytest.approx(expected, rel=1e-9)
        assert plan.bound_us <= expected * (1 + 1e-9)
        assert plan.gap < 1e-6


def test_the_random_graphs_exercise_moves() -> None:
    moved = 0
    for seed in range(24):
        case = random_case(seed, kernels=2 + seed % 5, fast_copies=seed % 4 != 0)
        plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1), EXACT)
        moved += len(plan.moves)
    assert moved >= 10
