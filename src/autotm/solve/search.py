"""The best plan and the best bound of a search so far, whoever proposes the one or proves the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotm.model.plan import Certificate, RoundedPrices, Status
from autotm.solve.certificate import Prices, bound_us
from autotm.solve.choices import Choices
from autotm.solve.ejection import eject
from autotm.solve.journey import Journey
from autotm.solve.problem import Problem
from autotm.solve.prune import Reduced
from autotm.solve.repair import Repair

_OPTIMAL_GAP = 1e-9


@dataclass
class Search:
    """What is known about one problem.

    Attributes:
        problem, choices: what is asked.
        reduced: what is left to decide of it.
        prices: those that prove the highest bound.
        bound_us: the highest bound that prices proved.
        claimed_us: the highest bound that the solver claims, without a proof.
        repair, objective_us: the best plan.
        timed_out: whether the time limit ended the search.
    """

    problem: Problem
    choices: Choices
    reduced: Reduced
    prices: Prices | None = None
    bound_us: float = -math.inf
    claimed_us: float = -math.inf
    repair: Repair | None = None
    objective_us: float = math.inf
    timed_out: bool = False

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
        """Whether the gap is as asked."""
        return self.gap <= self.problem.options.gap

    def charge(self, prices: Prices) -> None:
        """Keep prices if they prove more than those before."""
        found_us = self.problem.base_us + bound_us(self.choices, prices, self.problem.limit_bytes)
        if self.prices is None or found_us > self.bound_us:
            self.prices, self.bound_us = prices, found_us

    def propose(self, proposed: Mapping[int, Journey], proposed_ways: Mapping[int, int]) -> None:
        """Repair journeys and ways into a plan; keep it if it is the best."""
        repair = Repair(self.reduced.choices, self.problem.limit_bytes, len(self.problem.graph.kernels))
        repair.accept({**self.reduced.decided, **proposed}, proposed_ways)
        repair.complete()
        repair.improve()
        self.keep(repair)
        if not self.is_done:
            eject(repair)
            self.keep(repair)

    def keep(self, repair: Repair) -> None:
        """Keep a plan if it is the best."""
        objective_us = self.problem.base_us + repair.cost_us
        if objective_us < self.objective_us:
            self.repair, self.objective_us = repair, objective_us

    def claim(self, bound_us: float) -> None:
        """Take note of a bound that the solver claims."""
        self.claimed_us = max(self.claimed_us, bound_us)

    @property
    def solver_bound_us(self) -> float | None:
        """What the solver claims beyond what is proven; None where that is nothing."""
        return min(self.claimed_us, self.objective_us) if self.claimed_us > self.bound_us else None

    def certificate(self) -> Certificate:
        """The prices of the bound; those of slow operands for tabled kernels, as other tables have no operands."""
        assert self.prices is not None
        tables = zip(self.reduced.choices.tables, self.prices.slow_us, strict=True)
        tabled = tuple(shares for table, shares in tables if table.kernel in self.problem.tabled)
        engines = self.prices.engines
        parts = (engines.out_us, engines.back_us) if self.reduced.choices.has_flights else ()
        out_us, back_us = (tuple(price.tolist()) for price in parts) if parts else ((), ())
        rounded = []
        for divisor, prices in self.prices.rounded.items():
            kernels = prices.nonzero()[0]
            rounded.append(RoundedPrices(divisor, tuple(kernels.tolist()), tuple(prices[kernels].tolist())))
        return Certificate(tuple(self.prices.byte_us.tolist()), tabled, out_us, back_us, tuple(rounded))

    @property
    def status(self) -> Status:
        """How the search ended."""
        if self.gap <= _OPTIMAL_GAP:
            return Status.OPTIMAL
        if self.is_done:
            return Status.WITHIN_GAP
        return Status.TIME_LIMIT if self.timed_out else Status.ABOVE_GAP
