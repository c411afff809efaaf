"""Plans whose offsets fit their limit, for the limit that was asked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from random_graphs import Case, random_case

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import Place, pack
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.model.program import Layout
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve, solve_and_pack

fit = importlib.import_module("autotm.solve.placing")
EXACT = SolveOptions(gap=0.0)


def fragmented(limit: Limit) -> Case:
    """A step whose best plan cannot be packed into its limit."""
    for seed in (82, *range(200)):
        case = random_case(seed, kernels=9)
        plan = solve(case.graph, case.profile, case.links, "synchronous", limit, EXACT)
        if pack(case.graph, plan).fast_bytes > plan.dram_limit_bytes:
            return case
    raise AssertionError("no seed fragments")


def test_what_does_not_fit_together_is_given_up_and_the_plan_is_for_the_limit_asked() -> None:
    limit = Limit(2, 1)
    case = fragmented(limit)
    first = solve(case.graph, case.profile, case.links, "synchronous", limit, EXACT)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "synchronous", limit, EXACT)
    assert layout.fast_bytes <= plan.dram_limit_bytes == first.dram_limit_bytes
    assert plan.limit == first.limit
    assert plan.bound_us == pytest.approx(first.bound_us)
    assert first.objective_us <= plan.objective_us
    assert plan.offsets == layout.offsets
    assert plan.solve_s == pytest.approx(sum(seconds for _, seconds in plan.attempts_s))
    assert plan.status is (Status.ABOVE_GAP if plan.gap > 0 else Status.OPTIMAL), "the gap is that of the limit asked"
    check_plan(case.graph, case.profile, case.links, plan)
    check_program(case.graph, plan, compile_program(case.graph, plan, layout))


def test_a_plan_that_fits_is_left_alone() -> None:
    case = random_case(0)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "all-slow", Limit(1, 0))
    assert (len(plan.attempts_s), layout.fast_bytes) == (1, 0)


def test_no_limit_tolerates_fragmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(0)
    monkeypatch.setattr(fit, "pack", needing(case.graph.peak_live_bytes + 64))
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "all-fast", Limit(0, 1))
    assert layout.fast_bytes > plan.dram_limit_bytes


def test_what_cannot_be_packed_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(0)
    peak = case.graph.peak_live_bytes
    monkeypatch.setattr(fit, "pack", needing(peak + 64))
    with pytest.raises(AutotmError, match=f"offsets need {peak + 64}, .* at least {peak + 64} bytes"):
        solve_and_pack(case.graph, case.profile, case.links, "all-fast", Limit(size_bytes=peak))


def test_the_limit_is_tightened_until_the_offsets_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packing that wastes half of what it gets: most of the limit has to go, and a plan comes out all the same."""
    case = random_case(0)
    monkeypatch.setattr(fit, "pack", lambda graph, plan, place: wasteful(pack(graph, plan, place), 1.5))
    limit = Limit(size_bytes=case.graph.peak_live_bytes // 2)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "synchronous", limit)
    assert 1.5 * 64 < layout.fast_bytes <= plan.dram_limit_bytes == limit.size_bytes
    assert len(plan.attempts_s) > 2
    check_plan(case.graph, case.profile, case.links, plan)
    monkeypatch.setattr(fit, "pack", lambda graph, plan, place: wasteful(pack(graph, plan, place), 1e6))
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "synchronous", limit)
    assert layout.fast_bytes == 0, "nothing is fast where nothing can be packed"


def wasteful(layout: Layout, times: float) -> Layout:
    return replace(layout, fast_bytes=int(layout.fast_bytes * times))


def test_a_plan_for_a_smaller_limit_is_judged_by_the_limit_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(0)
    limit = case.graph.peak_live_bytes // 2
    needs = iter([limit + 64, limit])
    monkeypatch.setattr(
        fit, "pack", lambda graph, plan, place: replace(pack(graph, plan, place), fast_bytes=next(needs))
    )
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, "static", Limit(size_bytes=limit))
    assert layout.fast_bytes == plan.dram_limit_bytes == limit
    assert len(plan.attempts_s) == 2


@pytest.mark.parametrize(("found_us", "status"), [(101.0, Status.WITHIN_GAP), (103.0, Status.ABOVE_GAP)])
def test_a_plan_outside_the_gap_only_because_of_the_smaller_limit_is_searched_closer(
    monkeypatch: pytest.MonkeyPatch, found_us: float, status: Status
) -> None:
    case = random_case(0)
    limit = case.graph.peak_live_bytes // 2
    first = solve(case.graph, case.profile, case.links, "static", Limit(size_bytes=limit), EXACT)
    first = replace(first, objective_us=101.5, bound_us=100.0, status=Status.WITHIN_GAP)
    at_smaller = replace(first, objective_us=102.5, bound_us=101.0, attempts_s=((1.0, 2.0),))
    results, gaps = iter([at_smaller, replace(at_smaller, objective_us=found_us, attempts_s=((1.0, 4.0),))]), []

    def solved(*asked: object) -> Plan:
        options = asked[-2]
        assert isinstance(options, SolveOptions)
        gaps.append(options.gap)
        return next(results)

    needs = iter([limit + 64, limit, limit])
    monkeypatch.setattr(fit, "solve", solved)
    monkeypatch.setattr(
        fit, "pack", lambda graph, plan, place: replace(pack(graph, plan, place), fast_bytes=next(needs))
    )
    monkeypatch.setattr(fit, "sweep", lambda *_: (first,))
    given = (case.graph, case.profile, case.links)
    plan, _ = solve_and_pack(*given, "static", Limit(size_bytes=limit), SolveOptions(gap=0.02))
    assert gaps == pytest.approx([0.02, 1 - 0.98 * 1.01])
    assert (plan.objective_us, plan.bound_us, plan.status) == (min(found_us, 102.5), 100.0, status)
    assert plan.attempts_s == (*first.attempts_s, (1.0, 2.0), (1.0, 4.0))


def test_a_plan_that_nothing_searched_for_claims_no_proof_when_packed_into_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = random_case(0)
    limit = case.graph.peak_live_bytes // 2
    needs = iter([limit + 64, limit])
    monkeypatch.setattr(
        fit, "pack", lambda graph, plan, place: replace(pack(graph, plan, place), fast_bytes=next(needs))
    )
    plan, _ = solve_and_pack(case.graph, case.profile, case.links, "numa", Limit(size_bytes=limit))
    assert len(plan.attempts_s) == 2
    assert (plan.status, plan.gap, plan.dram_limit_bytes) == (Status.NOT_OPTIMIZED, 0, limit)
    check_plan(case.graph, case.profile, case.links, plan)


def needing_in_turn(needs: Iterator[int]) -> Callable[[Graph, Plan, Place], Layout]:
    """A packing that needs so many bytes, call after call."""
    return lambda graph, plan, place: replace(pack(graph, plan, place), fast_bytes=next(needs))


def needing(fast_bytes: int) -> Callable[[Graph, Plan, Place], Layout]:
    """A packing that needs the same bytes whatever the plan."""
    return lambda graph, plan, place: replace(pack(graph, plan, place), fast_bytes=fast_bytes)
