"""The best plan and the best bound of a search so far, whoever proposes the one or proves the other."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotm.model.plan import Certificate, Leaf, Status, Stay
from autotm.model.plan import Prices as Stated
from autotm.solve.bounds import Cut, Lagrangian, Priced, Prices, Reduced, certificate_of, state
from autotm.solve.plans import Conflicts, Member, Repair, eject, refine
from autotm.solve.problem import Choices, Problem, Residency

_OPTIMAL_GAP = 1e-9


@dataclass
class Search:
    """What is known about one problem.

    Attributes:
        problem, choices: what is asked.
        reduced: what is left to decide of it.
        prices: those that prove the highest bound.
        cuts: all that were found, by number.
        tree: the tree that proves more than the prices; None where there is none.
        bound_us: what that, or the prices alone, prove.
        claimed_us: the highest bound that the solver claims, without a proof.
        repair, objective_us: the best plan.
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
    repair: Repair | None = None
    objective_us: float = math.inf
    cuts: Sequence[Cut] = ()
    reserve_us: float = 0.0
    timed_out: bool = False
    tree: Certificate | None = None
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def gap(self) -> float:
        """As that of a plan."""
        return (self.objective_us - self.bound_us) / self.objective_us if self.objective_us > 0 else 0.0

    @property
    def best(self) -> Repair:
        """The best plan."""
        assert self.repair is not None
        return self.repair

    @property
    def is_done(self) -> bool:
        """Whether the gap is as asked, with the reserve."""
        return self.bound_us >= self.needed_us

    @property
    def needed_us(self) -> float:
        """The bound with which the best plan is close enough."""
        return (self.objective_us + self.reserve_us) * (1 - self.problem.options.gap)

    def charge(self, prices: Prices) -> None:
        """Keep prices if they prove more than those before."""
        found_us = self.problem.base_us + self.lagrangian.at(prices).bound_us
        if self.prices is None or found_us > self.bound_us:
            self.prices, self.bound_us, self.tree = prices, found_us, None

    def propose(self, proposed: Mapping[int, Residency], proposed_ways: Mapping[int, int]) -> None:
        """Repair residencies and ways into a plan; keep it if it is the best."""
        kernels = len(self.problem.graph.kernels)
        repair = Repair(self.reduced.choices, self.problem.limit_bytes, kernels, self.conflicts)
        repair.accept({**self.reduced.decided, **proposed}, proposed_ways)
        repair.complete()
        repair.improve()
        self.keep(repair)
        if not self.is_done:
            eject(repair)
            self.keep(repair)

    @cached_property
    def conflicts(self) -> Conflicts:
        """What was found not to fit together."""
        return Conflicts(self.reduced.choices.flows)

    def exclude(self, stays: Sequence[Stay]) -> tuple[Member, ...]:
        """Give up the best plan, which has all of these stays, for the nearest one that has not; their members."""
        members = self.conflicts.add(stays)
        if members:
            self.best.give_up(members)
            self.objective_us = self.problem.base_us + self.best.cost_us
        return members

    def keep(self, repair: Repair) -> None:
        """Keep a plan if it is the best."""
        objective_us = self.problem.base_us + repair.cost_us
        if objective_us < self.objective_us:
            self.repair, self.objective_us = repair, objective_us

    @property
    def target_us(self) -> float:
        """What the choices of a plan that is close enough cost at most."""
        return self.bound_us / (1 - self.problem.options.gap) - self.reserve_us - self.problem.base_us

    def refine(self, deadline_s: float) -> None:
        """Improve the best plan until it is close enough, `time.perf_counter` reaches `deadline_s`, or no more."""
        if self.is_done:
            return
        problem, repair = self.problem, self.best
        refine(repair, self.priced, deadline_s, self.target_us, problem.options.seed)
        self.objective_us = problem.base_us + repair.cost_us

    def claim(self, bound_us: float) -> None:
        """Take note of a bound that the solver claims."""
        self.claimed_us = max(self.claimed_us, bound_us)

    @property
    def solver_bound_us(self) -> float | None:
        """What the solver claims beyond what is proven; None where that is nothing."""
        return min(self.claimed_us, self.objective_us) if self.claimed_us > self.bound_us else None

    def prove(self, bound_us: float, certificate: Certificate) -> None:
        """Keep what a tree proves if it is more than its root does."""
        if bound_us > self.bound_us:
            self.bound_us, self.tree = bound_us, certificate

    @property
    def certificate(self) -> Certificate:
        """What proves the bound."""
        return self.tree or certificate_of([self.stated], [Leaf(0)], self.cuts)

    @property
    def stated(self) -> Stated:
        """The prices as a certificate states them."""
        assert self.prices is not None
        return state(self.prices, self.choices.tables)

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
