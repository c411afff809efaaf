"""Addresses of stays that change: none overlaps another or the limit; a plan spilled around them has all it needs."""

from __future__ import annotations

import importlib
import math
import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, random_case, training_step_case, with_engines

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import Addresses, Blocks
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Stay
from autotm.solve.choices import Choices, flows_by_use
from autotm.solve.local_search import refine
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve_and_pack
from autotm.solve.plans import PlanBuilder
from autotm.solve.prices import EnginePrices, Lagrangian, Priced, Prices
from autotm.solve.problem import Problem
from autotm.solve.search import Spilled, plan_of, spill_around

LIMIT_BYTES = 4096


def places_of(addresses: Addresses) -> dict[Stay, tuple[int, int]]:
    """Offsets and sizes."""
    extents = {stay: addresses._extents[row].tolist() for stay, row in addresses._rows.items()}
    return {stay: (low, high - low) for stay, (low, high) in extents.items()}


def overlap(places: dict[Stay, tuple[int, int]]) -> bool:
    return any(
        one.start < other.end and other.start < one.end and a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
        for (one, a), (other, b) in combinations(places.items(), 2)
    )


@given(seed=st.integers(0, 2**31 - 1))
def test_what_is_put_overlaps_nothing_and_is_refused_only_without_a_hole(seed: int) -> None:
    draw = random.Random(seed)
    addresses, outcomes = Addresses({}, (), LIMIT_BYTES), set()
    for number in range(60):
        start, end = sorted(draw.sample(range(20), 2))
        stay, size = Stay(f"t{number}", Tier.FAST, start, end), 64 * draw.randint(1, 20)
        before = dict(places_of(addresses))
        meeting = [place for other, place in before.items() if other.start < end and start < other.end]
        holes = [
            low
            for low in range(0, LIMIT_BYTES - size + 1, 64)
            if all(low + size <= at or at + taken <= low for at, taken in meeting)
        ]
        assert addresses.put(stay, size) == bool(holes)
        assert not overlap(places_of(addresses))
        if holes:
            assert places_of(addresses)[stay] == (holes[0], size)
        outcomes.add(bool(holes))
        if before and draw.random() < 0.3:
            addresses.remove(draw.choice(sorted(before, key=str)))
    assert outcomes == {True, False}


def repaired(case: Case, limit: Limit) -> tuple[PlanBuilder, Problem]:
    problem = Problem(case.graph, case.profile, case.links, limit, SolveOptions())
    repair = PlanBuilder(Choices(flows_by_use(problem)), problem.limit_bytes, len(case.graph.kernels))
    repair.complete()
    return repair, problem


def stacked(repair: PlanBuilder, problem: Problem) -> Addresses:
    """Addresses that waste most of the limit: no two stays share a byte, whenever they are."""
    fast = [stay for stay in plan_of(repair)[0] if stay.tier is Tier.FAST]
    blocks = Blocks.of(problem.graph, fast)
    return Addresses.of(fast, blocks, np.cumsum(blocks.sizes) - blocks.sizes, problem.limit_bytes)


def without_prices(problem: Problem, repair: PlanBuilder) -> Priced:
    kernels = len(problem.graph.kernels)
    nothing = Prices(np.zeros(kernels), tuple(() for _ in repair.tables), EnginePrices.none())
    return Priced(Lagrangian(repair.choices, problem.limit_bytes, kernels), nothing)


@pytest.mark.parametrize("seed", range(3))  # An example refines a plan for a second.
def test_what_finds_no_address_is_placed_anew_around_the_rest(seed: int) -> None:
    repair, problem = repaired(random_case(seed, kernels=14), Limit(1, 1))
    addresses, before, before_us = stacked(repair, problem), dict(repair.residencies), repair.cost_us
    kept = set(places_of(addresses))
    assert addresses.left_out
    conflicts, left = len(repair.conflicts), repair.left.copy()
    spilled = spill_around(repair, addresses, seed % 3, seed)
    assert spilled is not None
    require_addresses(spilled, problem)
    anew = {stay.tensor for stay in addresses.left_out}
    assert {stay for stay in kept if stay.tensor not in anew} <= set(places_of(spilled.addresses))
    spilled_us = spilled.builder.cost_us
    refine(spilled.builder, without_prices(problem, spilled.builder), math.inf, -math.inf, seed, spilled.exchange)
    require_addresses(spilled, problem)
    assert spilled.builder.cost_us <= spilled_us
    assert (repair.residencies, repair.cost_us, len(repair.conflicts)) == (before, before_us, conflicts)
    assert (repair.left == left).all()


def require_addresses(spilled: Spilled, problem: Problem) -> None:
    fast = [stay for stay in plan_of(spilled.builder)[0] if stay.tier is Tier.FAST]
    places = places_of(spilled.addresses)
    assert set(fast) == set(places)
    assert not overlap(places)
    assert all(sum(place) <= problem.limit_bytes for place in places.values())
    assert spilled.builder.left.min() >= 0


@pytest.mark.parametrize("optimizer", ["static", "synchronous", "asynchronous"])
def test_plans_whose_stays_were_placed_anew_are_accepted(
    optimizer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Quick packings only, at limits at which a few tensors fill the memory: what is free is in pieces."""
    monkeypatch.setattr(importlib.import_module("autotm.layout.packing"), "packings", lambda *_: iter(()))
    caplog.set_level("INFO")
    case = with_engines(training_step_case(layers=8, branches=3), 2.0)
    for slow in (4, 39):
        options = SolveOptions(gap=0.05)
        plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, Limit(slow, 1), options)
        assert fits(plan, layout)
        check_plan(case.graph, case.profile, case.links, plan)
        check_program(case.graph, plan, compile_program(case.graph, plan, layout))
    assert "placed anew" in caplog.text
