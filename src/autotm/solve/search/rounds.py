"""Rounds of rows that a relaxation's solution breaks: demand on the engines, and knapsacks."""

from __future__ import annotations

import logging
import time

from autotm.solve.program import Cuts, Formulation, Outcome, Session, Solved, prices_of
from autotm.solve.search.near import integral
from autotm.solve.search.search import Search

log = logging.getLogger(__name__)

_RAISED = 1e-5
"""Part of the step by which rows for the engines have to raise the bound for others to follow."""
_WORTH = 0.01
"""Part of the gap that a round of knapsack rows has to close for another to follow."""


def keep_up(search: Search, made: Formulation, session: Session, relaxed: Solved, deadline: float) -> Solved:
    """Add rows for what the relaxation asks of engines that cannot keep up, while that raises the bound."""
    while (block := made.demand.add_broken()) is not None:
        session.extend(block)
        before, relaxed = relaxed, session.relax(deadline - time.perf_counter())
        if relaxed.outcome is not Outcome.CONVERGED:
            break
        search.charge(prices_of(session, made, None, len(search.problem.graph.kernels)))
        assert before.objective is not None
        assert relaxed.objective is not None
        if relaxed.objective < before.objective * (1 + _RAISED):
            break
    return relaxed


def cut(search: Search, made: Formulation, session: Session, cuts: Cuts, deadline: float) -> None:
    """Add rows that the relaxation breaks as long as that closes much of the gap; and a plan from what it says then."""
    kernels = len(search.problem.graph.kernels)
    before_us, count = search.bound_us, cuts.count
    while not search.is_done:
        found, last_us = (cuts.add_broken(), made.demand.add_broken()), search.bound_us
        blocks = [block for block in found if block is not None]
        for block in blocks:
            session.extend(block)
        if not blocks:
            break
        if session.relax(deadline - time.perf_counter()).outcome is not Outcome.CONVERGED:
            return
        search.charge(prices_of(session, made, cuts, kernels))
        if search.bound_us - last_us < _WORTH * (search.objective_us - search.bound_us):
            break
    if search.bound_us > before_us and not search.is_done:
        log.info("%d knapsack rows raise the bound by %.3g", cuts.count - count, search.bound_us / before_us - 1)
        # Of asynchronous moves few are integral before HiGHS decides them: local search has better plans by then.
        if not made.async_moves.are_possible:
            search.propose(*integral(made))
