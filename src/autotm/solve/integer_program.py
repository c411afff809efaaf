"""The search of `static`, `synchronous` and `asynchronous`: reduce, relax, build a plan, search on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import pyomo.core as pyo

from autotm.solve.choices import Choices, require_feasible
from autotm.solve.cuts import Cuts
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Outcome, Session, Solved, require_solved
from autotm.solve.optimizer import Optimizer, Placement
from autotm.solve.options import SolveOptions, TimeBudget
from autotm.solve.prices import certificate_of
from autotm.solve.problem import Problem
from autotm.solve.reductions import Reduced, narrow, reduce
from autotm.solve.relaxation import integral, prices_of, set_limit, start_from
from autotm.solve.residencies import Residency
from autotm.solve.search import SOLVER_SHARE, Search, add_engine_cuts, cut, decide_fractional, make_addressable, plan_of
from autotm.solve.sift import Sifting, can_be_whole, is_large

log = logging.getLogger(__name__)

_NEAR_SHARE = 0.4
"""Part of the time left for the fractional tensors alone; the rest is for the whole program."""
_NEAR_ASYNC_MOVES_SHARE = 0.8
"""The former where moves may be asynchronous: the search of the whole seldom finds anything but bounds there."""
_LOCALLY = 0.2
"""Time in which improving a plan by itself has to pay, as a share of what the search has taken."""
_SEARCHING = 0.6
"""Of what a limit of a sweep may take, the part for its search; the rest is for addresses."""


class IntegerProgram(Optimizer):
    """An optimizer whose plan solves the compact formulation over its choices."""

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Search until the gap or the time limit is reached."""
        return next(self.place_all([problem], choices))

    def place_all(self, problems: Sequence[Problem], choices: Choices) -> Iterator[Placement]:
        """Search for each limit with one model, and from the plan for the limit before."""
        started = time.perf_counter()
        reduced = _reduced(problems, choices)
        if is_large(reduced):
            yield from _place_sifted(problems, choices, reduced, started)
            return
        ilp, options = build(reduced, problems[0].base_us), problems[0].options
        session = Session(ilp.model, options.seed) if ilp.is_open else None
        known: Mapping[int, Residency] = {}
        budget = TimeBudget(options.sweep_s, len(problems))
        for problem in problems:
            if session and len(problems) > 1:
                narrowed = narrow(choices, problem.limit_bytes, len(problem.graph.kernels))
                session.take_bounds(set_limit(ilp, narrowed, problem.limit_bytes))
            built = time.perf_counter()
            deadline, end_s = _ends(budget, options)
            search = _search(problem, choices, ilp, session, known, deadline)
            make_addressable(search, ilp, session, end_s)
            known = search.best.residencies
            yield _placement(search, built - started, time.perf_counter() - built)
            started = time.perf_counter()
            if problem is not problems[-1] and session and (session.is_lost or session.is_extended):
                session = Session(ilp.model, options.seed)

    def program(self, problem: Problem) -> pyo.ConcreteModel | None:
        """Return the compact formulation, reduced.

        Raises:
            InfeasibleLimitError: what has to be fast exceeds the limit.
        """
        choices = self.choices(problem)
        require_feasible(problem, choices, self.name)
        ilp = build(_reduced([problem], choices), problem.base_us)
        return ilp.model if ilp.is_open else None


def _ends(budget: TimeBudget, options: SolveOptions) -> tuple[float, float]:
    """Return when the next limit's search ends, and when its plan must have addresses, by `time.perf_counter`."""
    now, allowed_s = time.perf_counter(), budget.next_s()
    return now + min(options.time_limit_s, _SEARCHING * allowed_s), now + allowed_s


def _place_sifted(
    problems: Sequence[Problem], choices: Choices, together: Reduced, started: float
) -> Iterator[Placement]:
    """Search for each limit from a relaxation of what is in doubt there; `together` is reduced for all of them."""
    known: Mapping[int, Residency] = {}
    budget = TimeBudget(problems[0].options.sweep_s, len(problems))
    for problem in problems:
        reduced = together if len(problems) == 1 else _reduced([problem], choices)
        built = time.perf_counter()
        deadline, end_s = _ends(budget, problem.options)
        sifted = Sifting(problem, reduced, deadline).sift()
        ilp = sifted.ilp if sifted else build(reduced, problem.base_us)
        session = sifted.session if sifted else Session(ilp.model, problem.options.seed)
        search = _search(problem, choices, ilp, session, known, deadline, sifted.solved if sifted else None)
        if not search.is_done and can_be_whole(reduced) and time.perf_counter() < deadline:
            # What is not close enough after all: search the whole program from there on.
            partial, ilp = search, build(reduced, problem.base_us)
            session = Session(ilp.model, problem.options.seed)
            search = _search(problem, choices, ilp, session, partial.best.residencies, deadline)
            search.keep(partial.best)
            if partial.prices is not None:
                search.update_prices(partial.prices)
        make_addressable(search, ilp, None, end_s)
        known = search.best.residencies
        yield _placement(search, built - started, time.perf_counter() - built)
        started = time.perf_counter()


def _search(
    problem: Problem,
    choices: Choices,
    ilp: Formulation,
    session: Session | None,
    known: Mapping[int, Residency],
    deadline: float,
    relaxed: Solved | None = None,
) -> Search:
    """Search from the plan in `known`, and from the relaxation where that is solved already."""
    kernels = len(problem.graph.kernels)
    search = Search(problem, choices, ilp.reduced)
    if session is None:
        search.update_prices(prices_of(None, ilp, None, kernels))
        search.try_plan({}, {})
        return search
    if relaxed is None:
        # With windows most vertices are degenerate, and simplex takes four times as long, or does not end.
        relax = session.relax_from_inside if ilp.has_async_moves else session.relax
        relaxed = relax(deadline - time.perf_counter())
    require_solved(relaxed)
    search.update_prices(prices_of(session if relaxed.outcome is Outcome.CONVERGED else None, ilp, None, kernels))
    if relaxed.outcome is Outcome.CONVERGED:
        relaxed = add_engine_cuts(search, ilp, session, relaxed, deadline)
    search.try_plan(*(integral(ilp) if relaxed.has_solution else ({}, {})))
    if known:
        search.try_plan(known, {})
    if relaxed.outcome is not Outcome.CONVERGED:
        search.timed_out = True
        return search
    deadline = min(deadline, time.perf_counter() + problem.options.beyond_s)
    if not search.is_done:
        with Cuts(ilp, problem.limit_bytes, kernels) as cuts:
            search.timed_out = not _search_beyond(search, ilp, session, cuts, deadline)
    log.info("%.6g us, bound %.6g us, gap %.3g", search.objective_us, search.bound_us, search.gap)
    return search


def _search_beyond(search: Search, ilp: Formulation, session: Session, cuts: Cuts, deadline: float) -> bool:
    """Search on from the relaxation, by the cheapest method first; return whether there was time for all methods."""
    if ilp.has_async_moves:
        _improve(search, deadline)
    cut(search, ilp, session, cuts, deadline)
    if ilp.has_async_moves and not search.is_done and not session.is_lost:
        _improve(search, deadline)
        if not search.is_done:
            _search_near(search, ilp, session, deadline)
        if not search.is_done and not session.is_lost:
            _improve(search, deadline)
            if session.relax(deadline - time.perf_counter()).outcome is Outcome.CONVERGED:
                cut(search, ilp, session, cuts, deadline)
    is_complete = True
    for stage in (_search_near,) if ilp.reduced.is_partial else (_search_near, _search_all):
        if search.is_done:
            return True
        if session.is_lost or time.perf_counter() >= deadline:
            return False
        is_complete = stage(search, ilp, session, deadline)
    return search.is_done or is_complete


def _improve(search: Search, deadline: float) -> None:
    """Improve the best plan by local search, for as long as that brings it closer to the bound."""
    search.refine(deadline, _LOCALLY * (time.perf_counter() - search.started_s))


def _search_near(search: Search, ilp: Formulation, session: Session, deadline: float) -> bool:
    """Decide the tensors that the relaxation left fractional, in a part of the time left."""
    now, share = time.perf_counter(), _NEAR_ASYNC_MOVES_SHARE if ilp.has_async_moves else _NEAR_SHARE
    return decide_fractional(search, ilp, session, now + share * (deadline - now))


def _search_all(search: Search, ilp: Formulation, session: Session, deadline: float) -> bool:
    """Let HiGHS search the whole program from the best plan on, for the plan, the bound, or both.

    It is asked again with rows for the engines that cannot keep up with its plan.
    """
    while True:
        start_from(ilp, search.best.residencies, search.best.fast_bytes)
        solved = session.search(deadline - time.perf_counter(), SOLVER_SHARE * search.problem.options.gap, warm=True)
        require_solved(solved)
        if solved.has_solution:
            search.try_plan(*integral(ilp))
        if solved.bound is not None:
            search.claimed_us = max(search.claimed_us, solved.bound * ilp.us_per_unit)
        if solved.outcome is not Outcome.CONVERGED:
            return False
        if search.is_done or (block := ilp.demand.add_broken()) is None:
            return True
        session.extend(block)


def _placement(search: Search, build_s: float, solve_s: float) -> Placement:
    assert search.prices is not None
    # What the solver claims is stated only where it exceeds what the prices prove.
    claimed_us = min(search.claimed_us, search.objective_us) if search.claimed_us > search.bound_us else None
    certificate = certificate_of(search.prices, search.choices.tables)
    proof = search.bound_us, certificate, search.status
    return Placement(*plan_of(search.best), *proof, build_s, solve_s, solver_bound_us=claimed_us)


def _reduced(problems: Sequence[Problem], choices: Choices) -> Reduced:
    limits = [problem.limit_bytes for problem in problems]
    return reduce(choices, max(limits), len(problems[0].graph.kernels), min(limits))
