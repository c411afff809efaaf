"""Repair and exchanges keep every byte and never make a plan slower."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import exact_case

from autotm.model.limit import Limit
from autotm.solve.choices import Choices, flows_by_use, flows_for_life
from autotm.solve.local_search import eject
from autotm.solve.options import SolveOptions
from autotm.solve.plans import PlanBuilder
from autotm.solve.problem import Problem
from autotm.solve.residencies import occupy


def repaired(seed: int, *, moves: bool) -> tuple[Problem, PlanBuilder]:
    """A plan made without any solver, from tables and implementations."""
    case = exact_case(seed, kernels=8)
    options = SolveOptions(additive_tolerance=0.0)
    problem = Problem(case.graph, case.profile, case.links, Limit(3, 1), options)
    flows = flows_by_use(problem) if moves else flows_for_life(problem)
    repair = PlanBuilder(Choices(flows, problem.tabulation.tables), problem.limit_bytes, len(case.graph.kernels))
    repair.complete()
    return problem, repair


def left_bytes(problem: Problem, repair: PlanBuilder) -> np.ndarray:
    """Fast bytes free during each kernel, counted anew."""
    used = np.zeros(len(problem.graph.kernels), np.int64)
    for index, residency in repair.residencies.items():
        occupy(used, repair.flows[index], residency)
    for table, entry in zip(repair.tables, repair.entries, strict=True):
        used[table.kernel] += table.fast_bytes[entry]
    return problem.limit_bytes - used


def consistent(repair: PlanBuilder) -> bool:
    """Whether every table's entry has the tiers of its operands."""
    for table, entry, operands in zip(repair.tables, repair.entries, repair.choices.operands, strict=True):
        for operand, (index, gadget) in enumerate(operands):
            if bool(table.slow[entry] >> operand & 1) == repair.residencies[index].fast[gadget]:
                return False
    return True


@given(seed=st.integers(0, 2**31 - 1), moves=st.booleans())
def test_every_step_keeps_bytes_and_tiers_and_never_gets_slower(seed: int, *, moves: bool) -> None:
    problem, repair = repaired(seed, moves=moves)
    draw = random.Random(seed)
    before_us = repair.cost_us
    for step in (repair.improve, lambda: eject(repair)):
        step()
        assert repair.cost_us <= before_us + 1e-3
        before_us = repair.cost_us
    for _ in range(30):
        group = draw.sample(range(len(repair.flows)), min(len(repair.flows), draw.randint(1, 4)))
        residencies, entries = dict(repair.residencies), list(repair.entries)
        if not repair.exchange(group):
            assert (repair.residencies, repair.entries) == (residencies, entries), "a refused exchange is undone"
        assert repair.cost_us <= before_us + 1e-3
        before_us = repair.cost_us
    assert (repair.left == left_bytes(problem, repair)).all()
    assert repair.left.min() >= 0
    assert consistent(repair)


def test_exchanges_find_what_single_insertions_miss() -> None:
    gains = []
    for seed in range(12):
        _, repair = repaired(seed, moves=True)
        repair.improve()
        before_us = repair.cost_us
        eject(repair)
        gains.append(before_us - repair.cost_us)
    assert max(gains) > 1e-3
