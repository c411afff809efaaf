"""Asynchronous moves: the exact optimum of small steps, never worse than blocking moves, within memory and engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exhaustive_async_moves import optimum_us
from random_graphs import Case, random_case, training_step_case, with_engines

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import pack
from autotm.model.errors import BadInputError
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, sweep

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


def small_case(seed: int, slower: float) -> Case:
    return with_engines(random_case(seed, kernels=6 + seed % 2), slower)


def plan_of(case: Case, optimizer: str, limit: Limit, options: SolveOptions = EXACT) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, options)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


def async_moves(plan: Plan) -> int:
    return sum(move.is_asynchronous for move in plan.moves)


MORE = ((6, 3.0), (12, 3.0), (29, 1.0), (33, 1.0), (2, 8.0), (7, 1.5))
FLYING = ((3, 3.0), (5, 1.0), (13, 1.0), (34, 3.0))
"""Steps with asynchronous moves in their best plan at 1:1; a test that never saw one would show nothing."""


@pytest.mark.parametrize(
    ("seed", "slower"), [*FLYING, (0, 3.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
def test_the_optimum_of_small_steps_is_found(seed: int, slower: float) -> None:
    case = small_case(seed, slower)
    for limit in (Limit(1, 1), Limit(2, 1)):
        plan = plan_of(case, "asynchronous", limit)
        optimum, flying = optimum_us(case, plan.dram_limit_bytes)
        assert plan.objective_us == pytest.approx(optimum)
        assert plan.status is Status.OPTIMAL
        assert async_moves(plan) or limit != Limit(1, 1) or (seed, slower) not in FLYING
        if flying == 0:
            assert plan.objective_us == pytest.approx(plan_of(case, "synchronous", limit).objective_us)
        layout = pack(case.graph, plan)
        if layout.fast_bytes <= plan.dram_limit_bytes:
            check_program(case.graph, plan, compile_program(case.graph, plan, layout))


def test_limits_that_share_a_model_get_the_same_optimum() -> None:
    """Windows that a smaller limit forbids are closed in the shared model."""
    case, limits = small_case(34, 3.0), (Limit(4, 1), Limit(1, 1), Limit(2, 1))
    for limit, plan in zip(
        limits, sweep(case.graph, case.profile, case.links, "asynchronous", limits, EXACT), strict=True
    ):
        check_plan(case.graph, case.profile, case.links, plan)
        assert plan.objective_us == pytest.approx(plan_of(case, "asynchronous", limit).objective_us)


def test_a_free_engine_hides_moves_and_a_busy_one_does_not() -> None:
    """The faster the engines, the shorter the step; engines slower than any gap leave only blocking moves."""
    case = training_step_case(layers=3)
    options = SolveOptions(gap=1e-3, time_limit_s=200.0)
    blocking = plan_of(case, "synchronous", Limit(4, 1), options)
    plans = [plan_of(with_engines(case, slower), "asynchronous", Limit(4, 1), options) for slower in (1.0, 1e4)]
    assert plans[0].objective_us < 0.98 * blocking.objective_us
    assert async_moves(plans[0]) > 5
    assert async_moves(plans[1]) == 0
    assert plans[1].objective_us == pytest.approx(blocking.objective_us, rel=1e-3)


def test_larger_steps_beat_blocking_moves_with_a_bound_that_prices_prove() -> None:
    case = with_engines(training_step_case(layers=12), 2.0)
    options = SolveOptions(gap=0.05, time_limit_s=200.0)
    plan = plan_of(case, "asynchronous", Limit(4, 1), options)
    blocking = plan_of(case, "synchronous", Limit(4, 1), options)
    assert plan.bound_us < plan.objective_us < blocking.objective_us
    assert plan.certificate is not None
    assert plan.certificate.out.starts or plan.certificate.back.starts


def test_moves_that_cost_as_much_beside_kernels_are_blocking() -> None:
    case = with_engines(random_case(1, kernels=8), 1.0, contention=3.0)
    assert async_moves(plan_of(case, "asynchronous", Limit(1, 1))) == 0


def test_links_that_were_measured_before_are_refused_with_the_remedy() -> None:
    case = random_case(1)
    with pytest.raises(BadInputError, match=r"not measured; remove links\.json and run"):
        solve(case.graph, case.profile, case.links, "asynchronous", Limit(1, 1))


def test_operands_that_must_be_fast_are_fetched_beside_kernels() -> None:
    case = with_engines(random_case(8, kernels=10), 0.5)
    options = replace(EXACT, fast_operands_only=True)
    limit = Limit(size_bytes=int(case.graph.peak_live_bytes * 0.7))
    plan = solve(case.graph, case.profile, case.links, "asynchronous", limit, options)
    check_plan(case.graph, case.profile, case.links, plan, fast_operands_only=True)
    blocking = solve(case.graph, case.profile, case.links, "synchronous", limit, options)
    assert plan.objective_us < blocking.objective_us
    assert all("P" not in configuration for configuration in plan.configurations)
