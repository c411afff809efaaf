"""First touch: who is born first has the room, whatever it is worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, StepBuilder, make_links, random_case, random_profile, training_step_case

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, solve_and_pack

KB = 256
"""Elements of 4 bytes in 1 KiB."""


def case_of(graph: Graph) -> Case:
    return Case(graph, random_profile(graph, 0), make_links(29.0, 12.0))


def tiers(plan: Plan) -> dict[str, Tier]:
    return {stay.tensor: stay.tier for stay in plan.stays}


def chain(*kib: int) -> Graph:
    """Kernel i writes tensor `t{i}` of that size; the last kernel reads them all."""
    builder = StepBuilder()
    builder.argument("data", KB)
    for index, size in enumerate(kib):
        builder.kernel(["data"], {f"t{index}": size * KB}, {})
    builder.kernel([f"t{index}" for index in range(len(kib))], {"last": 16}, {})
    return builder.graph()


def test_who_comes_first_has_the_room() -> None:
    case = case_of(chain(4, 3, 2, 1))
    plan = solve(case.graph, case.profile, case.links, "numa", Limit(size_bytes=6 * 1024), SolveOptions())
    check_plan(case.graph, case.profile, case.links, plan)
    found = tiers(plan)
    assert [found[f"t{index}"] for index in range(4)] == [Tier.FAST, Tier.SLOW, Tier.FAST, Tier.SLOW]


def test_room_is_given_back() -> None:
    builder = StepBuilder()
    builder.argument("data", KB)
    builder.kernel(["data"], {"first": 2 * KB}, {})
    builder.kernel(["first"], {"second": KB}, {})
    builder.kernel(["second"], {"third": 2 * KB}, {})
    builder.kernel(["third"], {"last": 16}, {})
    case = case_of(builder.graph())
    plan = solve(case.graph, case.profile, case.links, "numa", Limit(size_bytes=3 * 1024), SolveOptions())
    assert set(tiers(plan).values()) == {Tier.FAST}, "'first' is dead when 'third' is born"


@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([Limit(1, 0), Limit(4, 1), Limit(1, 1), Limit(0, 1)]))
def test_plans_are_legal_and_never_beat_the_bound(seed: int, limit: Limit) -> None:
    case = random_case(seed, kernels=8)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "numa", limit)
    check_plan(case.graph, case.profile, case.links, plan)
    check_program(case.graph, plan, compile_program(case.graph, plan, layout))
    best = solve(case.graph, case.profile, case.links, "static", limit, SolveOptions(gap=0.0))
    assert plan.objective_us >= best.bound_us * (1 - 1e-9)
    if limit == Limit(0, 1):
        assert set(tiers(plan).values()) == {Tier.FAST}


def test_a_training_step_is_slower_than_the_static_optimum() -> None:
    case = training_step_case(layers=10)
    numa, static = (
        solve(case.graph, case.profile, case.links, name, Limit(4, 1), SolveOptions()) for name in ("numa", "static")
    )
    assert numa.objective_us > 1.05 * static.objective_us


def test_kernels_that_need_fast_operands_are_refused() -> None:
    case = random_case(1)
    with pytest.raises(BadInputError, match="numa"):
        solve(case.graph, case.profile, case.links, "numa", Limit(1, 1), SolveOptions(fast_operands_only=True))
