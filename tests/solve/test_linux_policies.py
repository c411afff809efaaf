"""What Linux does by itself: plans vouched for, pages dealt as asked, balanced as known, never past a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checked_plans import packed
from faults import refused
from random_graphs import Case, make_links, random_case, random_profile, training_step_case

from autotm.check.fault import Fault
from autotm.check.plan import check_plan
from autotm.model.cache import PageCounts
from autotm.model.errors import BadInputError
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import MachineRates
from autotm.model.plan import Plan, Status
from autotm.solve.options import SolveOptions
from autotm.solve.paging import (
    Balancing,
    BalancingRules,
    PageMap,
    StepCosts,
    balanced,
    interleave_weights,
    interleaved,
    preferred,
    touch,
    touch_order,
)
from autotm.solve.placing import solve
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us

STILL = ("linux-preferred", "linux-interleave", "linux-weighted-interleave")
POLICIES = (*STILL, "linux-balancing")
LIMITS = [Limit(1, 0), Limit(8, 1), Limit(1, 1), Limit(0, 1)]


def rated(case: Case) -> Case:
    return replace(case, links=replace(case.links, rates=MachineRates(1e12, 80e9)))


def planned(case: Case, optimizer: str, limit: Limit, **options: Any) -> Plan:
    return solve(*case, optimizer, limit, SolveOptions(**options))


@pytest.mark.parametrize("optimizer", POLICIES)
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_plans_and_programs_are_vouched_for(optimizer: str, limit: Limit) -> None:
    for seed in range(2):
        plan, _, program = packed(rated(random_case(seed, kernels=8, max_elements=40_000)), optimizer, limit)
        assert plan.status is Status.NOT_OPTIMIZED
        assert plan.paged.placed_by == "simulated"
        assert limit.slow == 0 or plan.paged.fast_bytes <= plan.dram_limit_bytes
        assert (program.fast_bytes, program.slow_bytes) == (0, plan.paged.size_bytes)


@pytest.mark.parametrize("optimizer", POLICIES)
@pytest.mark.parametrize(("limit", "same"), [(Limit(1, 0), "all-slow"), (Limit(0, 1), "all-fast")], ids=str)
def test_both_ends_are_those_of_the_other_optimizers(optimizer: str, limit: Limit, same: str) -> None:
    case = rated(training_step_case(layers=6))
    assert planned(case, optimizer, limit).objective_us == pytest.approx(planned(case, same, limit).objective_us)


@pytest.mark.parametrize("limit", [Limit(8, 1), Limit(1, 1)], ids=str)
def test_no_policy_is_past_the_bound_of_plans_that_move_tensors(limit: Limit) -> None:
    # A page holds a part of a tensor, and the bound is for whole ones: up to the asked gap, that gives nothing.
    case = rated(training_step_case(layers=3, branches=2))
    best = planned(case, "synchronous", limit, gap=0.01)
    for optimizer in POLICIES:
        assert planned(case, optimizer, limit).objective_us >= best.bound_us * (1 - 0.01)


def test_arguments_are_in_the_pool_where_the_limit_counts_them() -> None:
    few = rated(random_case(3, kernels=6, max_elements=40_000))
    graph = counting(few.graph, Counts.ALL)
    case = Case(graph, random_profile(graph, 3), few.links)
    for optimizer in (*POLICIES, "memory-mode"):
        plan, _, _ = packed(case, optimizer, Limit(1, 1))
        assert {"data", "weight"} <= {stay.tensor for stay in plan.stays}


def spread(count: int) -> PageMap:
    """A program that touches `count` pages in order, tensor by tensor of ten pages and a half."""
    size = 10 * 4096 + 2048
    touches = tuple((touch(start, min(size, count * 4096 - start), 4096),) for start in range(0, count * 4096, size))
    return PageMap(4096, count, touches)


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (27, 4), (1, 5)])
def test_pages_are_dealt_by_their_weights(weights: tuple[int, int]) -> None:
    fast = interleaved(spread(1000), 1000, weights)
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
    assert touch_order(PageMap(4096, 4, ((first,), (last, first)), (before,))).tolist() == [1, 2, 0, 3]


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


@pytest.mark.parametrize("optimizer", ["linux-preferred", "memory-mode"])
def test_a_plan_is_priced_anew_by_its_pool(optimizer: str) -> None:
    case = rated(training_step_case(layers=6))
    plan = planned(case, optimizer, Limit(4, 1))
    problem = Problem(*case, Limit(4, 1), SolveOptions())
    assert plan_us(problem, plan) == plan.objective_us
    other = replace(problem, profile=random_profile(case.graph, 5))
    anew = solve(case.graph, other.profile, case.links, optimizer, Limit(4, 1), SolveOptions())
    assert plan_us(other, plan) == anew.objective_us != plan.objective_us


def test_what_a_step_is_charged_for_is_counted() -> None:
    case = replace(rated(training_step_case(layers=4)), links=replace(make_links(29.0, 12.0)))
    plan = planned(case, "linux-balancing", Limit(4, 1))
    counts = PageCounts.of(plan.paged, case.graph)
    assert counts.promoted_bytes == sum(plan.paged.promoted_bytes) > 0
    assert counts.slow_read_bytes + counts.slow_written_bytes >= sum(map(sum, plan.paged.slow_bytes))


def fewer_slow(plan: Plan) -> dict[str, Any]:
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
    with refused(fault):
        check_plan(*case, wrong)


@pytest.mark.parametrize(
    ("optimizer", "pool", "fault"),
    [("linux-preferred", "paged", Fault.PAGES), ("memory-mode", "cached", Fault.CACHE)],
)
def test_pools_belong_to_their_optimizers_alone(optimizer: str, pool: str, fault: Fault) -> None:
    case = rated(training_step_case(layers=3))
    plan, slow = (planned(case, name, Limit(1, 0)) for name in (optimizer, "all-slow"))
    for wrong in (replace(plan, **{pool: None}), replace(slow, **{pool: getattr(plan, pool)})):
        with refused(fault):
            check_plan(*case, wrong)


PAGE = 4096
HOT, COLD = 200, 2000
"""Pages that every step reads, and pages that only the first one touches: those come first, and take fast memory."""


def hot_and_cold(step_us: float = 50_000.0) -> tuple[PageMap, StepCosts]:
    """One kernel that reads the hot pages, each slow byte of which costs as much as in emulated Optane memory."""
    cold, hot = touch(0, COLD * PAGE, PAGE), touch(COLD * PAGE, HOT * PAGE, PAGE)
    return PageMap(PAGE, COLD + HOT, ((hot,),), before=(cold,)), StepCosts((step_us,), ((2e-5,),), 3e-5, 8e-5)


def streaming(pages: int = 1000, kernels: int = 20) -> tuple[PageMap, StepCosts]:
    """Kernels that each pass over their own part of the pool, in turn."""
    part = pages // kernels
    touches = tuple((touch(number * part * PAGE, part * PAGE, PAGE),) for number in range(kernels))
    return PageMap(PAGE, pages, touches), StepCosts((5_000.0,) * kernels, ((2e-5,),) * kernels, 3e-5, 8e-5)


@pytest.mark.parametrize("seed", range(4))
def test_hot_pages_are_fast_after_two_passes_of_the_scan(seed: int) -> None:
    pages, costs = hot_and_cold()
    running = Balancing(pages, HOT + 50, costs, seed)
    assert not running.fast[COLD:].any(), "first touch gave all fast memory to the cold pages"
    while running.now_us < 2.5e6:
        running.kernel(0)
    assert running.fast[COLD:].all()
    slow_bytes, promoted, demoted = running.kernel(0)
    assert (slow_bytes, promoted, demoted) == ([0], 0, 0)
    steady = balanced(pages, HOT + 50, costs, seed)
    assert steady.is_steady
    assert (steady.slow_bytes, steady.promoted_bytes, steady.demoted_bytes) == (((0,),), (0,), (0,))


@pytest.mark.parametrize("capacity", [0, 1, 3, 17, 400, 999, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_fast_memory_never_holds_more_than_the_limit(capacity: int, seed: int) -> None:
    pages, costs = streaming()
    running, before = Balancing(pages, capacity, costs, seed), None
    for _ in range(100):
        for number in range(len(pages.kernels)):
            _, promoted, demoted = running.kernel(number)
            held = int(running.fast.sum())
            assert held <= capacity
            assert held <= running.most_fast_pages <= capacity
            if before is not None:
                assert held - before == (promoted - demoted) // PAGE, "pages are neither lost nor made"
            before = held


def test_the_same_seed_gives_the_same_pages_and_another_one_others() -> None:
    case = rated(training_step_case(layers=4))
    one, same, other = (planned(case, "linux-balancing", Limit(4, 1), seed=seed).paged for seed in (1, 1, 2))
    assert one == same != other


def test_a_step_that_reads_more_than_fits_moves_pages_for_ever() -> None:
    pages, costs = streaming()
    pool = balanced(pages, 300, costs, 0)
    assert sum(pool.promoted_bytes) > 0
    assert sum(pool.demoted_bytes) == pytest.approx(sum(pool.promoted_bytes), rel=0.05)


def test_pages_are_promoted_no_faster_than_the_rate_limit() -> None:
    pages, costs = hot_and_cold()
    running = Balancing(pages, HOT + 50, costs, 0, BalancingRules(rate_bytes=20 * PAGE))
    while running.now_us < 4e6:
        running.kernel(0)
    assert 0 < int(running.fast[COLD:].sum()) <= 5 * 20


def test_a_page_touched_long_after_it_was_marked_is_not_hot() -> None:
    pages, costs = hot_and_cold(step_us=5e6)
    running = Balancing(pages, HOT + 50, costs, 0, BalancingRules(hot_us=1e5))
    for _ in range(6):
        running.kernel(0)
    # Scans mark just before the kernel touches, in the same moment: those are hot whatever the threshold.
    marked_before = running.fast[COLD:].copy()
    running._marked[COLD:] = np.where(running.fast[COLD:], np.inf, running.now_us - 2e5)
    running._next_scan_us = running.now_us + 1e9
    running.kernel(0)
    assert (running.fast[COLD:] == marked_before).all()


def test_steps_that_are_skipped_are_those_that_would_have_run() -> None:
    pages, costs = hot_and_cold(step_us=1_000.0)
    by_window, one_by_one = Balancing(pages, 100, costs, 3), Balancing(pages, 100, costs, 3)
    window = by_window.window()
    slow = 0
    while one_by_one.now_us < by_window.now_us - 500:
        slow += one_by_one.kernel(0)[0][0]
    assert window.steps > 1000
    assert slow == pytest.approx(float(window.slow[0][0]), rel=0.01)
    assert (by_window.fast == one_by_one.fast).mean() > 0.99


def test_a_program_without_tensors_has_no_pages() -> None:
    assert balanced(PageMap(PAGE, 0, ((),)), 0, StepCosts((10.0,), ((),), 1e-5, 1e-5), 0).slow_bytes == ((),)
