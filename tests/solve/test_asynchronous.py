"""Asynchronous moves: exact optima, engines that keep up, what a plan loses, and rows and prices of engine time."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from checked_plans import solved, swept
from exhaustive import overlapped_optimum_us
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, exact_case, random_case, training_step_case, with_engines, with_state

from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import layout_of
from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.solve.choices import Choices, Window
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Session
from autotm.solve.local_search import Losses, refine
from autotm.solve.optimizers import Asynchronous
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.plans import Engine, PlanBuilder
from autotm.solve.prices import EnginePrices, Lagrangian, Priced, Prices, SpanPrices
from autotm.solve.problem import Problem
from autotm.solve.reductions import reduce
from autotm.solve.relaxation import prices_of
from autotm.solve.search import Search

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)


def small_case(seed: int, slower: float) -> Case:
    return with_engines(random_case(seed, kernels=6 + seed % 2), slower)


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
        plan = solved(case, "asynchronous", limit, EXACT)
        optimum, flying = overlapped_optimum_us(case, plan.dram_limit_bytes)
        assert plan.objective_us == pytest.approx(optimum)
        assert plan.status is Status.OPTIMAL
        assert async_moves(plan) or limit != Limit(1, 1) or (seed, slower) not in FLYING
        if flying == 0:
            assert plan.objective_us == pytest.approx(solved(case, "synchronous", limit, EXACT).objective_us)
        layout = layout_of(case.graph, plan)
        if layout.fast_bytes <= plan.dram_limit_bytes:
            check_program(case.graph, plan, compile_program(case.graph, plan, layout))


@pytest.mark.parametrize("fast_operands_only", [False, True])
@pytest.mark.parametrize("seed", [0, 3, 4, 8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 30))])
def test_what_is_fetched_and_stored_is_placed_at_the_optimum(seed: int, fast_operands_only: bool) -> None:
    case = with_engines(with_state(random_case(seed, kernels=6), seed), 0.5 + seed % 3)
    options = replace(EXACT, fast_operands_only=fast_operands_only)
    slots = (case.graph.slots_of(kernel) for kernel in case.graph.kernels)
    least = max(sum(case.graph.by_name[name].allocated_bytes for name in names) for names in slots)
    for share in (0.9, 0.4, 0.0):
        limit = Limit(size_bytes=least + int(share * (case.graph.peak_live_bytes - least)))
        plan = solved(case, "asynchronous", limit, options)
        optimum, _ = overlapped_optimum_us(case, limit.size_bytes, fast_operands_only=fast_operands_only)
        assert plan.objective_us == pytest.approx(optimum)
        assert fast_operands_only or plan.status is Status.OPTIMAL
        moved = {(move.tensor, move.destination) for move in plan.moves}
        assert not fast_operands_only or moved >= {("old", Tier.FAST), ("new", Tier.SLOW)}


def test_limits_that_share_a_model_get_the_same_optimum() -> None:
    """Windows that a smaller limit forbids are closed in the shared model."""
    case, limits = small_case(34, 3.0), (Limit(4, 1), Limit(1, 1), Limit(2, 1))
    for limit, plan in zip(limits, swept(case, "asynchronous", limits, EXACT), strict=True):
        assert plan.objective_us == pytest.approx(solved(case, "asynchronous", limit, EXACT).objective_us)


def test_a_free_engine_hides_moves_and_a_busy_one_does_not() -> None:
    """The faster the engines, the shorter the step; engines slower than any gap leave only blocking moves."""
    case = training_step_case(layers=3)
    options = SolveOptions(gap=1e-3, time_limit_s=200.0)
    blocking = solved(case, "synchronous", Limit(4, 1), options)
    plans = [solved(with_engines(case, slower), "asynchronous", Limit(4, 1), options) for slower in (1.0, 1e4)]
    assert plans[0].objective_us < 0.98 * blocking.objective_us
    assert async_moves(plans[0]) > 5
    assert async_moves(plans[1]) == 0
    assert plans[1].objective_us == pytest.approx(blocking.objective_us, rel=1e-3)


def test_moves_that_cost_as_much_beside_kernels_are_blocking() -> None:
    case = with_engines(random_case(1, kernels=8), 1.0, contention=3.0)
    assert async_moves(solved(case, "asynchronous", Limit(1, 1), EXACT)) == 0


def test_links_that_were_measured_before_are_refused_with_the_remedy() -> None:
    case = random_case(1)
    with pytest.raises(BadInputError, match=r"not measured; remove links\.json and run"):
        solve(*case, "asynchronous", Limit(1, 1))


def test_operands_that_must_be_fast_are_fetched_beside_kernels() -> None:
    case = with_engines(random_case(8, kernels=10), 0.5)
    options = replace(EXACT, fast_operands_only=True)
    limit = Limit(size_bytes=int(case.graph.peak_live_bytes * 0.7))
    plan = solved(case, "asynchronous", limit, options)
    assert plan.objective_us < solve(*case, "synchronous", limit, options).objective_us
    assert all("P" not in configuration for configuration in plan.configurations)


def drawn_window(draw: random.Random, kernels: int) -> Window:
    start, end = sorted(draw.sample(range(kernels + 1), 2))
    return Window(start, end, draw.randrange(1, 8))


def excess_ns(asked: Sequence[tuple[Window, float]], kernel_ns: Sequence[int]) -> float:
    """The most that moves, or shares of them, ask of a span of kernels beyond what it lasts, by trying all spans."""
    return max(
        sum(share * one.work_ns for one, share in asked if start <= one.start and one.end <= end)
        - sum(kernel_ns[start:end])
        for start, end in combinations(range(len(kernel_ns) + 1), 2)
    )


def can_be_done(windows: list[Window], kernel_ns: list[int]) -> bool:
    return excess_ns([(window, 1.0) for window in windows], kernel_ns) <= 0


@given(seed=st.integers(0, 2**31 - 1))
def test_a_move_is_refused_only_where_no_sharing_admits_it(seed: int) -> None:
    draw = random.Random(seed)
    kernel_ns = [draw.randrange(0, 12) for _ in range(9)]
    engine, taken = Engine(kernel_ns), {}
    outcomes = []
    for number in range(40):
        if taken and draw.random() < 0.3:
            gone = draw.choice(sorted(taken))
            engine.give(gone)
            del taken[gone]
        window = drawn_window(draw, len(kernel_ns))
        fits = can_be_done([*taken.values(), window], kernel_ns)
        assert engine.has_time(window) == fits
        assert engine.take((number, 1), window) == fits
        outcomes.append(fits)
        if fits:
            taken[number, 1] = window
    assert set(outcomes) == {True, False}


@given(seed=st.integers(0, 2**31 - 1))
def test_what_was_changed_since_a_mark_is_taken_back(seed: int) -> None:
    """What could be taken before can be taken after, and nothing else."""
    draw = random.Random(seed)
    kernel_ns = [draw.randrange(2, 12) for _ in range(9)]
    engine, taken = Engine(kernel_ns), {}
    for number in range(6):
        window = drawn_window(draw, len(kernel_ns))
        if engine.take((number, 1), window):
            taken[number, 1] = window
    engine.mark()
    for key in sorted(taken)[::2]:
        engine.give(key)
    changed = sum(engine.take((number, 2), drawn_window(draw, len(kernel_ns))) for number in range(10))
    assert changed
    engine.roll_back()
    for _ in range(30):
        window = drawn_window(draw, len(kernel_ns))
        assert engine.has_time(window) == can_be_done([*taken.values(), window], kernel_ns)


def drawn_prices(choices: Choices, draw: np.random.Generator) -> Prices:
    """Some spans of each engine have a price, some kernels one for bytes, all operands one for being slow."""
    kernels = len(choices.kernel_ns)
    until_ns = np.concatenate(([0], np.cumsum(choices.kernel_ns)))
    spans = []
    for _ in range(2):
        ends = np.sort(draw.choice(kernels + 1, (5, 2)), axis=1)
        starts, ends = ends[ends[:, 0] < ends[:, 1]].T
        spans.append(SpanPrices(starts, ends, until_ns[ends] - until_ns[starts], draw.random(len(starts)) * 1e-3))
    slow_us = tuple(tuple(draw.normal(size=len(table.operands)).tolist()) for table in choices.tables)
    byte_us = np.where(draw.random(kernels) < 0.5, draw.random(kernels) * 1e-3, 0.0)
    return Prices(byte_us, slow_us, EnginePrices(*spans))


def completed(case: Case, limit: Limit, seed: int) -> tuple[PlanBuilder, Priced]:
    """A plan made without a solver, and a bound by random prices."""
    problem = Problem(*case, limit, SolveOptions(additive_tolerance=0.0))
    choices, kernels = Asynchronous().choices(problem), len(case.graph.kernels)
    builder = PlanBuilder(choices, problem.limit_bytes, kernels)
    builder.complete()
    prices = drawn_prices(choices, np.random.default_rng(seed))
    return builder, Priced(Lagrangian(choices, problem.limit_bytes, kernels), prices)


@given(seed=st.integers(0, 2**31 - 1))
def test_losses_add_up_to_the_distance_from_the_bound(seed: int) -> None:
    repair, priced = completed(with_engines(exact_case(seed, kernels=8), 1.0), Limit(1, 1), seed)
    choices, prices = repair.choices, priced.prices
    regrets_us = [priced.regret_us(index, residency) for index, residency in repair.residencies.items()]
    tables = enumerate(zip(choices.tables, repair.entries, strict=True))
    regrets_us += [priced.entry_regret_us(number, table, entry) for number, (table, entry) in tables]
    assert min(regrets_us) > -1e-9
    engines = prices.engines
    unused_us = engines.out.unused_us(repair.engines.out.windows.values()).sum()
    unused_us += engines.back.unused_us(repair.engines.back.windows.values()).sum()
    memory_us = float(prices.byte_us @ repair.left)
    distance_us = repair.cost_us - priced.bound_us
    assert sum(regrets_us) + unused_us + memory_us == pytest.approx(distance_us, rel=1e-9, abs=1e-9)
    lost_us = Losses(choices.flows, priced).of_us(repair)
    assert lost_us.min() >= 0
    assert lost_us.sum() <= distance_us + 1e-9


def test_refining_by_losses_leaves_a_legal_plan_that_is_no_slower() -> None:
    seed = 1
    case = with_engines(training_step_case(layers=3, branches=3, seed=seed), 2.0)
    repair, priced = completed(case, Limit(4, 1), seed)
    before_us = repair.cost_us
    refine(repair, priced, math.inf, -math.inf, seed)
    assert repair.cost_us < before_us
    assert repair.left.min() >= 0
    again = repair.cost_us
    refine(repair, priced, math.inf, again, seed)
    assert repair.cost_us == again


def relaxed_excess_ns(ilp: Formulation, kernel_ns: Sequence[int]) -> float:
    sides = ([pair for choice in moves.values() for pair in choice] for moves in (ilp.writes, ilp.reads))
    return max(excess_ns([(window, variable.value or 0.0) for variable, window in side], kernel_ns) for side in sides)


def test_rows_are_added_until_every_span_keeps_up() -> None:
    problem = Problem(*with_engines(training_step_case(layers=4), 2.0), Limit(4, 1), SolveOptions())
    choices = Asynchronous().choices(problem)
    kernels = len(problem.graph.kernels)
    reduced = reduce(choices, problem.limit_bytes, kernels)
    ilp = build(reduced, problem.base_us)
    session = Session(ilp.model, seed=0)
    search = Search(problem, choices, reduced)
    solved, bounds_us = session.relax(30.0), []
    first_ns = relaxed_excess_ns(ilp, choices.kernel_ns)
    while True:
        assert solved.objective is not None
        search.update_prices(prices_of(session, ilp, None, kernels))
        bounds_us.append(search.bound_us)
        assert search.bound_us == pytest.approx(solved.objective * ilp.us_per_unit, rel=1e-6)
        block = ilp.demand.add_broken()
        if block is None:
            break
        session.extend(block)
        solved = session.relax(30.0)
    assert first_ns > 0
    assert relaxed_excess_ns(ilp, choices.kernel_ns) <= 1.0
    assert bounds_us == sorted(bounds_us)
    assert bounds_us[-1] > bounds_us[0]
