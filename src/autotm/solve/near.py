"""Plans near a relaxation: its integral part, and what HiGHS makes of the rest."""

from __future__ import annotations

import time

from autotm.solve.formulation import Formulation
from autotm.solve.highs import Outcome, Session
from autotm.solve.journey import Journey
from autotm.solve.search import Search
from autotm.solve.solution import journeys, variables_of, ways

SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""


def integral(made: Formulation) -> tuple[dict[int, Journey], dict[int, int]]:
    """What the model's values leave no doubt about: journeys by flow, ways by table."""
    return journeys(made), ways(made)


def decide_fractional(search: Search, made: Formulation, session: Session, deadline: float) -> bool:
    """Let HiGHS decide the tensors that the relaxation left fractional, the others staying where it put them.

    Berthold's RENS (Mathematical Programming Computation, 2014) without rounding bounds: what it proves holds for
    these few tensors only, so only its plan is taken. Returns whether it ended in time.
    """
    left_s = deadline - time.perf_counter()
    with session.held(variables_of(made, journeys(made))):
        found = session.search(left_s, SOLVER_SHARE * search.problem.options.gap, warm=False)
    if found.has_solution:
        search.propose(*integral(made))
    return found.outcome is Outcome.CONVERGED


def search_again(search: Search, made: Formulation, session: Session, deadline: float) -> None:
    """The program has got a row since: relax it from where it was, and let HiGHS search it.

    What it proves holds for plans that keep such rows only, so only its plans are taken.
    """
    if session.relax(deadline - time.perf_counter()).outcome is not Outcome.CONVERGED:
        return
    search.propose(*integral(made))
    if not search.is_done and not session.is_lost:
        decide_fractional(search, made, session, deadline)
    if not (search.is_done or session.is_lost or made.reduced.is_partial):
        left_s, gap = deadline - time.perf_counter(), SOLVER_SHARE * search.problem.options.gap
        if session.search(left_s, gap, warm=False).has_solution:
            search.propose(*integral(made))
