"""The best plan and bound of a search so far, plans near its relaxation, and rounds of rows that this breaks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotm.model.certificate import Certificate
from autotm.model.plan import Status, Stay
from autotm.solve import relaxation
from autotm.solve.choices import Choices
from autotm.solve.cuts import Cuts
from autotm.solve.formulation import Formulation
from autotm.solve.highs import Outcome, Session, Solved
from autotm.solve.local_search import eject, refine
from autotm.solve.plans import Conflicts, Member, PlanBuilder
from autotm.solve.prices import Lagrangian, Priced, Prices, certificate_of
from autotm.solve.problem import Problem
from autotm.solve.reductions import Reduced
from autotm.solve.relaxation import prices_of, variables_of
from autotm.solve.residencies import Residency

# The best plan and the best bound of a search so far, whoever proposes the one or proves the other.

_OPTIMAL_GAP = 1e-9


@dataclass
class Search:
    """What is known about one problem.

    Attributes:
        problem, choices: what is asked.
        reduced: what is left to decide of it.
        prices: those that prove the highest bound.
        bound_us: what they prove.
        claimed_us: the highest bound that the solver claims, without a proof.
        builder, objective_us: the best plan.
        reserve_us: what addresses cost the last plan that was tried: the next one has to be better by that much.
        timed_out: whether the time limit ended the search.
        started_s: when it began, by `time.perf_counter`.
    """

    problem: Problem
    choices: Choices
    reduced: Reduced
    prices: Prices | None = None
    bound_us: float = -math.inf
    claimed_us: float = -math.inf
    builder: PlanBuilder | None = None
    objective_us: float = math.inf
    reserve_us: float = 0.0
    timed_out: bool = False
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def gap(self) -> float:
        """As that of a plan."""
        return (self.objective_us - self.bound_us) / self.objective_us if self.objective_us > 0 else 0.0

    @property
    def best(self) -> PlanBuilder:
        """The best plan."""
        assert self.builder is not None
        return self.builder

    @property
    def is_done(self) -> bool:
        """Whether the gap is as asked, with the reserve."""
        return self.bound_us >= self.needed_us

    @property
    def needed_us(self) -> float:
        """The bound with which the best plan is close enough."""
        return (self.objective_us + self.reserve_us) * (1 - self.problem.options.gap)

    def update_prices(self, prices: Prices) -> None:
        """Keep prices if they prove more than those before."""
        found_us = self.problem.base_us + self.lagrangian.at(prices).bound_us
        if self.prices is None or found_us > self.bound_us:
            self.prices, self.bound_us = prices, found_us

    def try_plan(self, residencies: Mapping[int, Residency], variants: Mapping[int, int]) -> None:
        """Build a legal plan from residencies and variants; keep it if it is the best."""
        kernels = len(self.problem.graph.kernels)
        builder = PlanBuilder(self.reduced.choices, self.problem.limit_bytes, kernels, self.conflicts)
        builder.accept({**self.reduced.decided, **residencies}, variants)
        builder.complete()
        builder.improve()
        self.keep(builder)
        if not self.is_done:
            eject(builder)
            self.keep(builder)

    @cached_property
    def conflicts(self) -> Conflicts:
        """What was found not to fit together."""
        return Conflicts(self.reduced.choices.flows)

    def exclude(self, stays: Sequence[Stay]) -> tuple[Member, ...]:
        """Drop one conflicting stay from the best plan; return the conflict's members."""
        members = self.conflicts.add(stays)
        if members:
            self.best.give_up(members)
            self.objective_us = self.problem.base_us + self.best.cost_us
        return members

    def keep(self, builder: PlanBuilder) -> None:
        """Keep a plan if it is the best."""
        objective_us = self.problem.base_us + builder.cost_us
        if objective_us < self.objective_us:
            self.builder, self.objective_us = builder, objective_us

    @property
    def target_us(self) -> float:
        """What the choices of a plan that is close enough cost at most."""
        return self.bound_us / (1 - self.problem.options.gap) - self.reserve_us - self.problem.base_us

    def refine(self, deadline_s: float) -> None:
        """Improve the best plan until it is close enough, `time.perf_counter` reaches `deadline_s`, or no more."""
        if self.is_done:
            return
        problem, builder = self.problem, self.best
        refine(builder, self.priced, deadline_s, self.target_us, problem.options.seed)
        self.objective_us = problem.base_us + builder.cost_us

    def note_solver_bound(self, bound_us: float) -> None:
        """Take note of a bound that the solver claims."""
        self.claimed_us = max(self.claimed_us, bound_us)

    @property
    def solver_bound_us(self) -> float | None:
        """What the solver claims beyond what is proven; None where that is nothing."""
        return min(self.claimed_us, self.objective_us) if self.claimed_us > self.bound_us else None

    @property
    def certificate(self) -> Certificate:
        """What proves the bound."""
        assert self.prices is not None
        return certificate_of(self.prices, self.choices.tables)

    @cached_property
    def lagrangian(self) -> Lagrangian:
        """What prices prove."""
        return Lagrangian(self.choices, self.problem.limit_bytes, len(self.problem.graph.kernels))

    @property
    def priced(self) -> Priced:
        """The bound of the best prices, term by term."""
        assert self.prices is not None
        return self.lagrangian.at(self.prices)

    @property
    def status(self) -> Status:
        """How the search ended."""
        if self.gap <= _OPTIMAL_GAP:
            return Status.OPTIMAL
        if self.gap <= self.problem.options.gap:
            return Status.WITHIN_GAP
        return Status.TIME_LIMIT if self.timed_out else Status.ABOVE_GAP


# Plans near a relaxation: its integral part, and what HiGHS makes of the rest.

SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""
_NEAR_SHARE = 0.1
"""The same where most is decided already: the best of what is left counts, until the whole plan is close enough."""


def integral(made: Formulation) -> tuple[dict[int, Residency], dict[int, int]]:
    """What the model's values leave no doubt about: residencies by flow, variants by table."""
    return relaxation.residencies(made), relaxation.variants(made)


def decide_fractional(search: Search, made: Formulation, session: Session, deadline: float) -> bool:
    """Let HiGHS decide the tensors that the relaxation left fractional, the others staying where it put them.

    Berthold's RENS (Mathematical Programming Computation, 2014) without rounding bounds: what it proves holds for
    these few tensors only, so only its plan is taken. It is asked again with rows for the engines that cannot keep up
    with its plan. Returns whether it ended in time.
    """
    gap = search.problem.options.gap
    enough = search.bound_us / (1 - SOLVER_SHARE * gap) / made.us_per_unit
    with session.held(variables_of(made, relaxation.residencies(made))):
        while True:
            left_s = deadline - time.perf_counter()
            found = session.search(left_s, _NEAR_SHARE * gap, warm=False, enough=enough)
            if found.has_solution:
                search.try_plan(*integral(made))
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
        search.try_plan(*integral(made))
    if not search.is_done and not session.is_lost:
        decide_fractional(search, made, session, deadline)
    if not (search.is_done or session.is_lost or made.reduced.is_partial):
        left_s, gap = deadline - time.perf_counter(), SOLVER_SHARE * search.problem.options.gap
        if session.search(left_s, gap, warm=False).has_solution:
            search.try_plan(*integral(made))


# Rounds of rows that a relaxation's solution breaks: demand on the engines, and knapsacks.

log = logging.getLogger(__name__)

_RAISED = 1e-5
"""Part of the step by which rows for the engines have to raise the bound for others to follow."""
_WORTH = 0.01
"""Part of the gap that a round of knapsack rows has to close for another to follow."""


def add_engine_cuts(search: Search, made: Formulation, session: Session, relaxed: Solved, deadline: float) -> Solved:
    """Add rows for what the relaxation asks of engines that cannot keep up, while that raises the bound."""
    while (block := made.demand.add_broken()) is not None:
        session.extend(block)
        before, relaxed = relaxed, session.relax(deadline - time.perf_counter())
        if relaxed.outcome is not Outcome.CONVERGED:
            break
        search.update_prices(prices_of(session, made, None, len(search.problem.graph.kernels)))
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
        search.update_prices(prices_of(session, made, cuts, kernels))
        if search.bound_us - last_us < _WORTH * (search.objective_us - search.bound_us):
            break
    if search.bound_us > before_us and not search.is_done:
        log.info("%d knapsack rows raise the bound by %.3g", cuts.count - count, search.bound_us / before_us - 1)
        # Of asynchronous moves few are integral before HiGHS decides them: local search has better plans by then.
        if not made.async_moves.are_possible:
            search.try_plan(*integral(made))
