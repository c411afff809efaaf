"""The compact formulation has the optimum of the published one."""

from __future__ import annotations

import pytest
from random_graphs import random_case, with_engines

from autotm.model.step.limit import Limit
from autotm.solve import SolveOptions, solve
from published_formulation import solve_published


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("seed", range(100, 108))
def test_equal_optimum(seed: int, optimizer: str) -> None:
    case = random_case(seed, kernels=4 + seed % 8, fast_copies=seed % 3 != 0)
    for limit in (Limit(1, 1), Limit(4, 1)):
        plan = solve(case.graph, case.profile, case.links, optimizer, limit, SolveOptions(gap=0.0))
        published = solve_published(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
        assert plan.objective_us == pytest.approx(published.objective_us, rel=1e-6)


def test_published_moves_beside_single_kernels_only_help() -> None:
    saved = []
    for seed in range(100, 106):
        case = with_engines(random_case(seed, kernels=6), 1.0, 0.0)
        limit_bytes = Limit(4, 1).fast_bytes(case.graph.peak_live_bytes)
        times = [solve_published(case, limit_bytes, moves=True, beside=beside).objective_us for beside in (0, 1, 15)]
        assert None not in times
        assert sorted(times, reverse=True) == pytest.approx(times)
        assert times[-1] >= sum(case.profile.base_us(kernel) for kernel in case.graph.kernels)
        saved.append(1 - times[-1] / times[0])
    assert max(saved) > 1e-3
