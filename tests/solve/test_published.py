"""The compact formulation has the optimum of the published one."""

from __future__ import annotations

import pytest

from autotm.model.limit import Limit
from autotm.solve import SolveOptions, solve
from published_formulation import solve_published
from random_graphs import random_case


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("seed", range(100, 108))
def test_equal_optimum(seed: int, optimizer: str) -> None:
    case = random_case(seed, kernels=4 + seed % 8, fast_copies=seed % 3 != 0)
    for limit in (Limit(1, 1), Limit(4, 1)):
        plan = solve(case.graph, case.profile, case.links, optimizer, limit, SolveOptions(gap=0.0))
        published = solve_published(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
        assert plan.objective_us == pytest.approx(published.objective_us, rel=1e-6)
