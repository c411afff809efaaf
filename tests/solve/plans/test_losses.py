"""What a plan loses by its flows, and memory that it leaves, are its distance to the bound, whatever the prices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import exact_case, training_step_case, with_engines

from autotm.model.limit import Limit
from autotm.solve.choices import Choices
from autotm.solve.local_search import Losses, refine
from autotm.solve.optimizers import Asynchronous
from autotm.solve.options import SolveOptions
from autotm.solve.plans import PlanBuilder
from autotm.solve.prices import EnginePrices, Lagrangian, Priced, Prices, SpanPrices
from autotm.solve.problem import Problem


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


@given(seed=st.integers(0, 2**31 - 1))
def test_losses_add_up_to_the_distance_from_the_bound(seed: int) -> None:
    case = with_engines(exact_case(seed, kernels=8), 1.0)
    options = SolveOptions(additive_tolerance=0.0)
    problem = Problem(case.graph, case.profile, case.links, Limit(1, 1), options)
    choices, kernels = Asynchronous().choices(problem), len(case.graph.kernels)
    repair = PlanBuilder(choices, problem.limit_bytes, kernels)
    repair.complete()
    prices = drawn_prices(choices, np.random.default_rng(seed))
    priced = Priced(Lagrangian(choices, problem.limit_bytes, kernels), prices)
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
    problem = Problem(case.graph, case.profile, case.links, Limit(4, 1), SolveOptions())
    choices, kernels = Asynchronous().choices(problem), len(case.graph.kernels)
    repair = PlanBuilder(choices, problem.limit_bytes, kernels)
    repair.complete()
    before_us = repair.cost_us
    prices = drawn_prices(choices, np.random.default_rng(seed))
    priced = Priced(Lagrangian(choices, problem.limit_bytes, kernels), prices)
    refine(repair, priced, math.inf, -math.inf, seed)
    assert repair.cost_us < before_us
    assert repair.left.min() >= 0
    again = repair.cost_us
    refine(repair, priced, math.inf, again, seed)
    assert repair.cost_us == again
