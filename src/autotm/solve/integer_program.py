"""The search that `static` and `synchronous` share: reduce, relax, repair, and search on where the gap is too wide."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo
from pyomo.common.gc_manager import PauseGC

from autotm.model.plan import BoundProof, Certificate, Move, Status, Stay
from autotm.model.tier import Tier
from autotm.solve.at_limit import set_limit
from autotm.solve.base import Optimizer, Placement
from autotm.solve.certificate import SlowPrices, bound_us
from autotm.solve.choices import Choices
from autotm.solve.feasible import require_feasible
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Outcome, Session, Solved, require_solved
from autotm.solve.journey import Journey, stays_and_moves
from autotm.solve.problem import Problem
from autotm.solve.prune import Reduced, narrow, reduce
from autotm.solve.repair import Repair
from autotm.solve.solution import byte_prices, journeys, slow_prices, start_from, ways
from autotm.solve.table import Floats

log = logging.getLogger(__name__)

_OPTIMAL_GAP = 1e-9
_SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""


@dataclass
class _Search:
    """The best journeys and the best bound so far."""

    repair: Repair
    bound_us: float
    prices: Floats
    slow_us: SlowPrices
    objective_us: float
    proof: BoundProof = BoundProof.PRICES
    timed_out: bool = False

    @property
    def gap(self) -> float:
        return (self.objective_us - self.bound_us) / self.objective_us if self.objective_us > 0 else 0.0

    def certificate(self, problem: Problem, choices: Choices) -> Certificate:
        """The prices of the bound; those of slow operands for tabled kernels, as other tables have no operands."""
        tables = zip(choices.tables, self.slow_us, strict=True)
        tabled = tuple(shares for table, shares in tables if table.kernel in problem.tabled)
        return Certificate(tuple(self.prices.tolist()), tabled)

    def status(self, target: float) -> Status:
        if self.gap <= _OPTIMAL_GAP:
            return Status.OPTIMAL
        if self.gap <= target:
            return Status.WITHIN_GAP
        return Status.TIME_LIMIT if self.timed_out else Status.ABOVE_GAP


class IntegerProgram(Optimizer):
    """An optimizer whose plan solves the compact formulation over its choices."""

    @abstractmethod
    def choices(self, problem: Problem) -> Choices:
        """What there is to choose from."""

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Search until the gap or the time limit is reached."""
        return next(self.place_all([problem], choices))

    def place_all(self, problems: Sequence[Problem], choices: Choices) -> Iterator[Placement]:
        """Search for each limit with one model, and from the plan for the limit before."""
        started = time.perf_counter()
        made = _made(problems, choices)
        options = problems[0].options
        session = Session(made.model, options.threads, options.seed) if made.is_open else None
        known: Mapping[int, Journey] = {}
        for problem in problems:
            if session and len(problems) > 1:
                narrowed = narrow(choices, problem.limit_bytes, len(problem.graph.kernels))
                session.take_bounds(set_limit(made, narrowed, problem.limit_bytes))
            built = time.perf_counter()
            search = self._search(problem, choices, made, session, known)
            known = search.repair.journeys
            yield _placement(problem, choices, search, built - started, time.perf_counter() - built)
            started = time.perf_counter()
            if session and session.is_lost:
                session = Session(made.model, options.threads, options.seed)

    def program(self, problem: Problem) -> pyo.ConcreteModel | None:
        """The compact formulation, reduced.

        Raises:
            InfeasibleLimitError: what has to be fast exceeds the limit.
        """
        choices = self.choices(problem)
        require_feasible(problem, choices, self.name)
        made = _made([problem], choices)
        return made.model if made.is_open else None

    def _search(
        self,
        problem: Problem,
        choices: Choices,
        made: Formulation,
        session: Session | None,
        known: Mapping[int, Journey],
    ) -> _Search:
        options, started = problem.options, time.perf_counter()
        prices = np.zeros(len(problem.graph.kernels))
        if session is None:
            repair = _repaired(problem, made.reduced, {}, {})
            return _priced(problem, choices, repair, prices, slow_prices(None, made))
        relaxed = session.relax(options.time_limit_s)
        require_solved(relaxed)
        is_priced = relaxed.outcome is Outcome.CONVERGED
        if is_priced:
            prices[list(made.reduced.rows)] = byte_prices(session, made)
        proposed = (journeys(made), ways(made)) if relaxed.has_solution else ({}, {})
        repair = _repaired(problem, made.reduced, *proposed)
        if known:
            repair = min(repair, _repaired(problem, made.reduced, known, {}), key=lambda repair: repair.cost_us)
        search = _priced(problem, choices, repair, prices, slow_prices(session if is_priced else None, made))
        left_s = options.time_limit_s - (time.perf_counter() - started)
        if relaxed.outcome is Outcome.HUNG or left_s <= 0:
            search.timed_out = True
        elif search.gap > options.gap:
            start_from(made, search.repair.journeys, search.repair.fast_bytes)
            found = session.search(left_s, _SOLVER_SHARE * options.gap, warm=True)
            require_solved(found)
            _adopt(problem, made, found, search)
        log.info("%.6g us, bound %.6g us, gap %.3g", search.objective_us, search.bound_us, search.gap)
        return search


def _placement(problem: Problem, choices: Choices, search: _Search, build_s: float, solve_s: float) -> Placement:
    stays, moves, implementations = _plan(search.repair)
    return Placement(
        stays=stays,
        moves=moves,
        implementations=implementations,
        bound_us=search.bound_us,
        bound_proof=search.proof,
        certificate=search.certificate(problem, choices),
        status=search.status(problem.options.gap),
        build_s=build_s,
        solve_s=solve_s,
    )


def _plan(repair: Repair) -> tuple[list[Stay], list[Move], dict[int, str]]:
    """Stays, moves and implementations of what was chosen."""
    stays: list[Stay] = []
    moves: list[Move] = []
    implementations = {}
    for index, flow in enumerate(repair.flows):
        tensor_stays, tensor_moves = stays_and_moves(flow, repair.journeys[index])
        stays += tensor_stays
        moves += tensor_moves
    for table, entry in zip(repair.tables, repair.entries, strict=True):
        way = table.ways[int(table.way[entry])]
        span = (table.kernel, table.kernel + 1)
        stays += [Stay(name, Tier.DRAM, *span) for name in way.fast_workspaces]
        stays += [Stay(name, Tier.PMEM, *span) for name in way.slow_workspaces]
        implementations[table.kernel] = way.implementation
    return stays, moves, implementations


def _made(problems: Sequence[Problem], choices: Choices) -> Formulation:
    limits = [problem.limit_bytes for problem in problems]
    reduced = reduce(choices, max(limits), len(problems[0].graph.kernels), min(limits))
    with PauseGC():
        return build(reduced, problems[0].base_us)


def _repaired(
    problem: Problem, reduced: Reduced, proposed: Mapping[int, Journey], proposed_ways: Mapping[int, int]
) -> Repair:
    repair = Repair(reduced.choices, problem.limit_bytes, len(problem.graph.kernels))
    repair.accept({**reduced.decided, **proposed}, proposed_ways)
    repair.complete()
    repair.improve()
    return repair


def _priced(problem: Problem, choices: Choices, repair: Repair, prices: Floats, slow_us: SlowPrices) -> _Search:
    bound = problem.base_us + bound_us(choices, prices, slow_us, problem.limit_bytes)
    return _Search(repair, bound, prices, slow_us, problem.base_us + repair.cost_us)


def _adopt(problem: Problem, made: Formulation, found: Solved, search: _Search) -> None:
    """Keep what the integer search improved: the plan after an exact repair, the bound, or both."""
    search.timed_out = found.outcome is not Outcome.CONVERGED
    if found.has_solution:
        repair = _repaired(problem, made.reduced, journeys(made), ways(made))
        objective_us = problem.base_us + repair.cost_us
        if objective_us < search.objective_us:
            search.repair, search.objective_us = repair, objective_us
    if found.bound is not None and found.bound * made.us_per_unit > search.bound_us:
        search.bound_us = min(found.bound * made.us_per_unit, search.objective_us)
        search.proof = BoundProof.BRANCH_AND_BOUND
