"""Plans near a relaxation: its integral part, and what HiGHS makes of the rest."""

from __future__ import annotations

import time

from autotm.solve.problem import Residency
from autotm.solve.program import Formulation, Outcome, Session, residencies, variables_of, ways
from autotm.solve.search.search import Search

SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""
_NEAR_SHARE = 0.1
"""The same where most is decided already: the best of what is left counts, until the whole plan is close enough."""


def integral(made: Formulation) -> tuple[dict[int, Residency], dict[int, int]]:
    """What the model's values leave no doubt about: residencies by flow, ways by table."""
    return residencies(made), ways(made)


def decide_fractional(search: Search, made: Formulation, session: Session, deadline: float) -> bool:
    """Let HiGHS decide the tensors that the relaxation left fractional, the others staying where it put them.

    Berthold's RENS (Mathematical Programming Computation, 2014) without rounding bounds: what it proves holds for
    these few tensors only, so only its plan is taken. It is asked again with rows for the engines that cannot keep up
    with its plan. Returns whether it ended in time.
    """
    gap = search.problem.options.gap
    enough = search.bound_us / (1 - SOLVER_SHARE * gap) / made.us_per_unit
    with session.held(variables_of(made, residencies(made))):
        while True:
            left_s = deadline - time.perf_counter()
            found = session.search(left_s, _NEAR_SHARE * gap, warm=False, enough=enough)
            if found.has_solution:
                search.propose(*integral(made))
            if found.outcome is not Outcome.CONVERGED:
                return False
            if search.is_done or (block := made.demand.add_broken()) is None:
                return True
            session.extend(block)


def search_again(search: Search, made: Formulation, session: Session, deadline: float) -> None:
    """The program has got a row since: relax it from where it was, and let HiGHS search it.

    What it proves holds for plans that keep such rows only, so only its plans are taken.
    """
    if session.relax(deadline - time.perf_counter()).outcome is not Outcome.CONVERGED:
        return
    if not made.async_moves.are_possible:  # As in `cut`.
        search.propose(*integral(made))
    if not search.is_done and not session.is_lost:
        decide_fractional(search, made, session, deadline)
    if not (search.is_done or session.is_lost or made.reduced.is_partial):
        left_s, gap = deadline - time.perf_counter(), SOLVER_SHARE * search.problem.options.gap
        if session.search(left_s, gap, warm=False).has_solution:
            search.propose(*integral(made))
