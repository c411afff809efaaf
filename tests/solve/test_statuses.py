"""How a search ended reaches the user as it was, for every optimizer that searches."""

from __future__ import annotations

import os
import signal

import pytest
from random_graphs import Case, training_step_case, with_engines

from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Status
from autotm.solve import highs
from autotm.solve.highs import Session, Solved
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

OPTIMIZERS = ("static", "synchronous", "asynchronous")
TIGHT, HARD = Limit(39, 1), Limit(2, 1)
"""Where the relaxation's repaired plan is some way from its bound, and where only branch and bound closes the gap."""


@pytest.fixture(scope="module")
def step() -> Case:
    return with_engines(training_step_case(layers=4, branches=3))


def plan_of(case: Case, optimizer: str, limit: Limit, options: SolveOptions) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, limit, options)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimal_where_there_is_no_gap(step: Case, optimizer: str) -> None:
    plan = plan_of(step, optimizer, Limit(0, 1), SolveOptions(gap=0.0))
    assert (plan.status, plan.gap) == (Status.OPTIMAL, 0.0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_within_the_gap_that_was_asked(step: Case, optimizer: str) -> None:
    plan = plan_of(step, optimizer, TIGHT, SolveOptions(gap=0.5))
    assert plan.status is Status.WITHIN_GAP
    assert 0 < plan.gap <= 0.5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_time_limit_before_the_solver_has_anything(optimizer: str) -> None:
    # HiGHS is done with a small step before it looks at the clock.
    large = with_engines(training_step_case(layers=20))
    plan = plan_of(large, optimizer, TIGHT, SolveOptions(gap=0.0, time_limit_s=1e-6))
    assert plan.status is Status.TIME_LIMIT
    assert plan.gap > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_time_limit_with_a_plan_in_hand(step: Case, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relaxation has all the time it wants, branch and bound none."""
    search = Session.search
    ended: list[Solved] = []

    def hurried(self: Session, _: float, gap: float, *, warm: bool, **asked: float) -> Solved:
        ended.append(search(self, 1e-3, gap, warm=warm, **asked))
        return ended[-1]

    monkeypatch.setattr(Session, "search", hurried)
    plan = plan_of(step, optimizer, HARD, SolveOptions(gap=0.0))
    assert ended
    assert plan.status is Status.TIME_LIMIT
    assert 0 < plan.gap < 1


def test_what_only_the_solver_proves_is_claimed_and_above_the_gap(step: Case) -> None:
    """Branch and bound is done, but the prices of the relaxation with its rows do not prove as much."""
    plan = plan_of(step, "synchronous", HARD, SolveOptions(gap=0.0))
    assert plan.status is Status.ABOVE_GAP
    assert plan.solver_gap is not None
    assert plan.solver_gap < 1e-6 < plan.gap


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_interrupt_ends_the_search_and_the_next_one_works(
    step: Case, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = highs._run_watched

    def interrupted(solver: object, deadline_s: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        watched(solver, deadline_s)

    with monkeypatch.context() as patched:
        patched.setattr(highs, "_run_watched", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan_of(step, optimizer, TIGHT, SolveOptions(gap=0.5))
    assert plan_of(step, optimizer, TIGHT, SolveOptions(gap=0.5)).status is Status.WITHIN_GAP
