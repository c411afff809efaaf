"""The compact formulation has the optimum of the published one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_case, with_engines

from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from published_formulation import solve_published


@given(
    seed=st.integers(0, 2**31 - 1),
    kernels=st.integers(4, 11),
    fast_copies=st.booleans(),
    optimizer=st.sampled_from(["static", "synchronous"]),
    limit=st.sampled_from([Limit(1, 1), Limit(4, 1)]),
)
def test_equal_optimum(seed: int, kernels: int, optimizer: str, limit: Limit, *, fast_copies: bool) -> None:
    case = random_case(seed, kernels, fast_copies=fast_copies)
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, SolveOptions(gap=0.0))
    published = solve_published(case, plan.dram_limit_bytes, moves=optimizer == "synchronous")
    assert plan.objective_us == pytest.approx(published.objective_us, rel=1e-6)


def test_published_moves_beside_single_kernels_only_help() -> None:
    saved = []
    for seed in (100, 101, 102):
        case = with_engines(random_case(seed, kernels=6), 1.0, 0.0)
        limit_bytes = Limit(4, 1).fast_bytes(case.graph.peak_live_bytes)
        times = [solve_published(case, limit_bytes, moves=True, beside=beside).objective_us for beside in (0, 1, 15)]
        assert None not in times
        assert sorted(times, reverse=True) == pytest.approx(times)
        assert times[-1] >= sum(case.profile.base_us(kernel) for kernel in case.graph.kernels)
        saved.append(1 - times[-1] / times[0])
    assert max(saved) > 1e-3
