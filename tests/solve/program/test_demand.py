"""Demand rows: what a relaxation breaks is found, no span stays broken, and prices prove the relaxation's bound."""

from __future__ import annotations

from itertools import accumulate, combinations

import pytest
from random_graphs import training_step_case, with_engines

from autotm.model.limit import Limit
from autotm.solve.choices import Choices
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Session
from autotm.solve.optimizers import Asynchronous
from autotm.solve.options import SolveOptions
from autotm.solve.problem import Problem
from autotm.solve.reductions import reduce
from autotm.solve.relaxation import prices_of
from autotm.solve.search import Search


def problem_of(slower: float) -> Problem:
    case = with_engines(training_step_case(layers=4), slower)
    return Problem(case.graph, case.profile, case.links, Limit(4, 1), SolveOptions())


def excess_ns(ilp: Formulation, choices: Choices) -> float:
    """The most that a span of kernels is asked for more than it lasts, by trying all."""
    until = list(accumulate(choices.kernel_ns, initial=0))
    found = 0.0
    for moves in (ilp.writes, ilp.reads):
        asked = [(window, variable.value or 0.0) for choice in moves.values() for variable, window in choice]
        for start, end in combinations(range(len(until)), 2):
            work = sum(w.work_ns * value for w, value in asked if start <= w.start and w.end <= end)
            found = max(found, work - (until[end] - until[start]))
    return found


def test_rows_are_added_until_every_span_keeps_up() -> None:
    problem = problem_of(2.0)
    choices = Asynchronous().choices(problem)
    kernels = len(problem.graph.kernels)
    reduced = reduce(choices, problem.limit_bytes, kernels)
    ilp = build(reduced, problem.base_us)
    session = Session(ilp.model, threads=1, seed=0)
    search = Search(problem, choices, reduced)
    solved, bounds_us = session.relax(30.0), []
    first_ns = excess_ns(ilp, choices)
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
    assert excess_ns(ilp, choices) <= 1.0
    assert bounds_us == sorted(bounds_us)
    assert bounds_us[-1] > bounds_us[0]
