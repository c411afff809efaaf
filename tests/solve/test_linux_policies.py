"""What Linux does by itself: plans vouched for, pages dealt as asked, priced as other plans are, never past a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_graphs import Case, make_links, random_case, random_profile, training_step_case

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.model.cache import PageCounts
from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import MachineRates
from autotm.model.plan import Plan, Status
from autotm.solve.options import SolveOptions
from autotm.solve.paging import PageMap, interleave_weights, interleaved, preferred, touch, touch_order
from autotm.solve.placing import solve, solve_and_pack
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us

STILL = ("linux-preferred", "linux-interleave", "linux-weighted-interleave")
POLICIES = (*STILL, "linux-balancing")
LIMITS = [Limit(1, 0), Limit(8, 1), Limit(1, 1), Limit(0, 1)]


def rated(case: Case) -> Case:
    return replace(case, links=replace(case.links, rates=MachineRates(1e12, 80e9)))


def planned(case: Case, optimizer: str, limit: Limit, **options: Any) -> Plan:
    return solve(case.graph, case.profile, case.links, optimizer, limit, SolveOptions(**options))


def big_case(seed: int) -> Case:
    """A random step of tensors of many pages."""
    return rated(random_case(seed, kernels=8, max_elements=40_000))


@pytest.mark.parametrize("optimizer", POLICIES)
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_plans_and_programs_are_vouched_for(optimizer: str, limit: Limit) -> None:
    for seed in range(2):
        case = big_case(seed)
        plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, limit)
        check_plan(case.graph, case.profile, case.links, plan)
        program = compile_program(case.graph, plan, layout)
        check_program(case.graph, plan, program)
        assert plan.status is Status.NOT_OPTIMIZED
        assert plan.paged is not None
        assert plan.paged.placed_by == "simulated"
        assert limit.slow == 0 or plan.paged.fast_bytes <= plan.dram_limit_bytes
        assert (program.fast_bytes, program.slow_bytes) == (0, plan.paged.size_bytes)


@pytest.mark.parametrize("optimizer", POLICIES)
@pytest.mark.parametrize(("limit", "same"), [(Limit(1, 0), "all-slow"), (Limit(0, 1), "all-fast")], ids=str)
def test_both_ends_are_those_of_the_other_optimizers(optimizer: str, limit: Limit, same: str) -> None:
    case = rated(training_step_case(layers=6))
    wanted = planned(case, same, limit).objective_us
    assert planned(case, optimizer, limit).objective_us == pytest.approx(wanted)


@pytest.mark.parametrize("limit", [Limit(8, 1), Limit(1, 1)], ids=str)
def test_no_policy_is_past_the_bound_of_plans_that_move_tensors(limit: Limit) -> None:
    # A page holds a part of a tensor, and the bound is for whole ones: up to the asked gap, that gives nothing.
    case = rated(training_step_case(layers=3, branches=2))
    best = planned(case, "synchronous", limit, gap=0.01)
    for optimizer in POLICIES:
        assert planned(case, optimizer, limit).objective_us >= best.bound_us * (1 - 0.01)


@pytest.mark.parametrize("optimizer", POLICIES)
def test_the_same_seed_gives_the_same_plan(optimizer: str) -> None:
    case = rated(training_step_case(layers=4))
    one, same = (planned(case, optimizer, Limit(4, 1), seed=7).paged for _ in range(2))
    assert one == same


def test_arguments_are_in_the_pool_where_the_limit_counts_them() -> None:
    few = rated(random_case(3, kernels=6, max_elements=40_000))
    graph = counting(few.graph, Counts.ALL)
    case = Case(graph, random_profile(graph, 3), few.links)
    for optimizer in POLICIES:
        plan = planned(case, optimizer, Limit(1, 1))
        check_plan(case.graph, case.profile, case.links, plan)
        assert {"data", "weight"} <= {stay.tensor for stay in plan.stays}


def spread(count: int) -> PageMap:
    """A program that touches `count` pages in order, tensor by tensor of ten pages and a half."""
    size = 10 * 4096 + 2048
    touches = tuple((touch(start, min(size, count * 4096 - start), 4096),) for start in range(0, count * 4096, size))
    return PageMap(4096, count, touches)


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (27, 4), (1, 5)])
def test_pages_are_dealt_by_their_weights(weights: tuple[int, int]) -> None:
    pages = spread(1000)
    fast = interleaved(pages, 1000, weights)
    whole = 1000 // sum(weights) * sum(weights)
    assert fast[:whole].mean() == weights[0] / sum(weights)
    assert (fast[: sum(weights)] == [True] * weights[0] + [False] * weights[1]).all()


@pytest.mark.parametrize("room", [0, 1, 99, 500, 2000])
def test_a_full_memory_passes_pages_on(room: int) -> None:
    pages = spread(1000)
    assert preferred(pages, room).sum() == min(room, 1000)
    assert preferred(pages, room)[: min(room, 1000)].all()
    assert interleaved(pages, room, (1, 1)).sum() == min(room, 500)


def test_pages_are_first_touched_by_arguments_then_in_the_order_of_kernels() -> None:
    last, first, before = touch(0, 4096, 4096), touch(8192, 4096, 4096), touch(4096, 4096, 4096)
    pages = PageMap(4096, 4, ((first,), (last, first)), (before,))
    assert touch_order(pages).tolist() == [1, 2, 0, 3]


def test_slow_bytes_are_those_of_the_tensor_alone() -> None:
    part = touch(1000, 8000, 4096)
    assert (part.first, part.stop) == (0, 3)
    for fast in np.ndindex(2, 2, 2):
        slow = [size for size, is_fast in zip((3096, 4096, 808), fast, strict=True) if not is_fast]
        assert part.slow_bytes(np.array(fast, np.bool_), 4096) == sum(slow)


@pytest.mark.parametrize(
    ("fast", "slow", "weights"), [(1.0, 1.0, (1, 1)), (3.0, 1.0, (3, 1)), (80e9, 12e9, (27, 4)), (1e12, 1.0, (31, 1))]
)
def test_weights_are_those_of_linux(fast: float, slow: float, weights: tuple[int, int]) -> None:
    assert interleave_weights(fast, slow) == weights


def test_weights_need_the_rates_of_the_machine() -> None:
    with pytest.raises(BadInputError, match="run the rule calibrate again"):
        planned(random_case(1), "linux-weighted-interleave", Limit(1, 1))


@pytest.mark.parametrize("optimizer", POLICIES)
def test_what_linux_cannot_keep_is_refused(optimizer: str) -> None:
    case = big_case(1)
    name = case.graph.movable[0].name
    for tier in Tier:
        with pytest.raises(BadInputError, match="Linux places pages here"):
            planned(case, optimizer, Limit(1, 1), fixed={name: tier})
    with pytest.raises(BadInputError, match="need fast operands"):
        planned(case, optimizer, Limit(1, 1), fast_operands_only=True)


def test_a_plan_is_priced_anew_by_its_pages() -> None:
    case = rated(training_step_case(layers=6))
    plan = planned(case, "linux-preferred", Limit(4, 1))
    problem = Problem(case.graph, case.profile, case.links, Limit(4, 1), SolveOptions())
    assert plan_us(problem, plan) == plan.objective_us
    other = replace(problem, profile=random_profile(case.graph, 5))
    anew = solve(case.graph, other.profile, case.links, "linux-preferred", Limit(4, 1), SolveOptions())
    assert plan_us(other, plan) == anew.objective_us != plan.objective_us


def test_what_a_step_is_charged_for_is_counted() -> None:
    case = replace(rated(training_step_case(layers=4)), links=replace(make_links(29.0, 12.0)))
    plan = planned(case, "linux-balancing", Limit(4, 1))
    assert plan.paged is not None
    counts = PageCounts.of(plan.paged, case.graph)
    assert counts.promoted_bytes == sum(plan.paged.promoted_bytes) > 0
    assert counts.slow_read_bytes + counts.slow_written_bytes >= sum(map(sum, plan.paged.slow_bytes))


def fewer_slow(plan: Plan) -> dict[str, Any]:
    assert plan.paged is not None
    kernel = next(i for i, each in enumerate(plan.paged.slow_bytes) if sum(each) > 0)
    slow = [list(each) for each in plan.paged.slow_bytes]
    slow[kernel] = [max(0, size - 64) for size in slow[kernel]]
    return {"slow_bytes": tuple(map(tuple, slow))}


BROKEN: list[tuple[Callable[[Plan], dict[str, Any]], Fault]] = [
    (fewer_slow, Fault.PAGES),
    (lambda _: {"page_bytes": 5000}, Fault.PAGES),
    (lambda plan: {"fast_pages": plan.paged.fast_pages + 1}, Fault.LIMIT),
    (lambda plan: {"most_fast_pages": plan.paged.fast_pages + 1}, Fault.LIMIT),
    (lambda plan: {"offsets": tuple(offset + 8 for offset in plan.paged.offsets)}, Fault.ALIGNMENT),
    (lambda plan: {"promoted_bytes": (4096,) * len(plan.configurations)}, Fault.PAGES),
    (lambda plan: {"slow_bytes": plan.paged.slow_bytes[1:]}, Fault.PAGES),
    (lambda _: {"weights": (2, 1)}, Fault.PAGES),
]


@pytest.mark.parametrize(("breaks", "fault"), BROKEN, ids=range(len(BROKEN)))
def test_a_wrong_plan_is_told(breaks: Callable[[Plan], dict[str, Any]], fault: Fault) -> None:
    case = rated(training_step_case(layers=3))
    plan = planned(case, "linux-interleave", Limit(2, 1))
    assert plan.paged is not None
    wrong = replace(plan, paged=replace(plan.paged, **breaks(plan)))
    with pytest.raises(FaultError) as told:
        check_plan(case.graph, case.profile, case.links, wrong)
    assert told.value.fault is fault


def test_pages_belong_to_policies_of_linux_only() -> None:
    case = rated(training_step_case(layers=3))
    plan, slow = (planned(case, name, Limit(1, 0)) for name in ("linux-preferred", "all-slow"))
    for wrong in (replace(plan, paged=None), replace(slow, paged=plan.paged)):
        with pytest.raises(FaultError) as told:
            check_plan(case.graph, case.profile, case.links, wrong)
        assert told.value.fault is Fault.PAGES
