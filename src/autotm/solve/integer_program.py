"""The search that `static` and `synchronous` share: reduce, relax, repair, and search on where the gap is too wide."""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyomo.environ as pyo
from pyomo.common.gc_manager import PauseGC

from autotm.model.plan import BoundProof, Certificate, Move, Status, Stay
from autotm.model.tier import Tier
from autotm.solve.at_limit import set_limit
from autotm.solve.base import Optimizer, Placement
from autotm.solve.certificate import Prices, bound_us
from autotm.solve.choices import Choices
from autotm.solve.ejection import eject
from autotm.solve.engines import EnginePrices
from autotm.solve.feasible import require_feasible
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Outcome, Session, require_solved
from autotm.solve.journey import Journey, stays_and_moves
from autotm.solve.local_search import refine
from autotm.solve.options import SolveOptions
from autotm.solve.problem import Problem
from autotm.solve.prune import narrow, reduce
from autotm.solve.repair import Repair
from autotm.solve.solution import byte_prices, engine_prices, journeys, slow_prices, start_from, variables_of, ways

log = logging.getLogger(__name__)

_OPTIMAL_GAP = 1e-9
_SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""
_NEAR_SHARE = 0.2
"""Part of the time left that goes into the fractional tensors alone."""
_WITHOUT_FLIGHTS, _LOCALLY = 0.25, 0.5
"""Where moves may be asynchronous, parts of the time left for the plan without such moves, and then for improving
plans before the integer search, which seldom finds anything but bounds there."""
_LEAST_S = 0.01


@dataclass
class _Search:
    """The best plan and the best bound so far."""

    problem: Problem
    made: Formulation
    prices: Prices
    bound_us: float
    repair: Repair | None = None
    objective_us: float = math.inf
    proof: BoundProof = BoundProof.PRICES
    timed_out: bool = False

    @property
    def gap(self) -> float:
        return (self.objective_us - self.bound_us) / self.objective_us if self.objective_us > 0 else 0.0

    @property
    def best(self) -> Repair:
        """The best plan."""
        assert self.repair is not None
        return self.repair

    @property
    def is_done(self) -> bool:
        return self.gap <= self.problem.options.gap

    def propose(self, proposed: Mapping[int, Journey], proposed_ways: Mapping[int, int]) -> None:
        """Repair journeys and ways into a plan; keep it if it is the best."""
        reduced = self.made.reduced
        repair = Repair(reduced.choices, self.problem.limit_bytes, len(self.problem.graph.kernels))
        repair.accept({**reduced.decided, **proposed}, proposed_ways)
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

    def raise_bound(self, bound_us: float) -> None:
        """Take over a bound that branch and bound proved, if it is the best."""
        if bound_us > self.bound_us:
            self.bound_us = min(bound_us, self.objective_us)
            self.proof = BoundProof.BRANCH_AND_BOUND

    def certificate(self) -> Certificate:
        """The prices of the bound; those of slow operands for tabled kernels, as other tables have no operands."""
        tables = zip(self.made.reduced.choices.tables, self.prices.slow_us, strict=True)
        tabled = tuple(shares for table, shares in tables if table.kernel in self.problem.tabled)
        engines = self.prices.engines
        parts = (engines.out_us, engines.back_us) if self.made.flights.are_possible else ()
        return Certificate(tuple(self.prices.byte_us.tolist()), tabled, *(tuple(price.tolist()) for price in parts))

    @property
    def status(self) -> Status:
        """How the search ended."""
        if self.gap <= _OPTIMAL_GAP:
            return Status.OPTIMAL
        if self.is_done:
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
        session = _session(made, options) if made.is_open else None
        known: Mapping[int, Journey] = {}
        for problem in problems:
            if session and len(problems) > 1:
                narrowed = narrow(choices, problem.limit_bytes, len(problem.graph.kernels))
                session.take_bounds(set_limit(made, narrowed, problem.limit_bytes))
            built = time.perf_counter()
            with PauseGC():
                search = _search(problem, choices, made, session, known)
            known = search.best.journeys
            yield _placement(search, built - started, time.perf_counter() - built)
            started = time.perf_counter()
            if session and session.is_lost:
                session = _session(made, options)

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
    problem: Problem, choices: Choices, made: Formulation, session: Session | None, known: Mapping[int, Journey]
) -> _Search:
    deadline = time.perf_counter() + problem.options.time_limit_s
    if session is None:
        search = _priced(problem, choices, made, None)
        search.propose({}, {})
        return search
    relaxed = session.relax(problem.options.time_limit_s)
    require_solved(relaxed)
    search = _priced(problem, choices, made, session if relaxed.outcome is Outcome.CONVERGED else None)
    integral = journeys(made) if relaxed.has_solution else {}
    search.propose(integral, ways(made) if relaxed.has_solution else {})
    if known:
        search.propose(known, {})
    if made.flights.are_possible and not search.is_done:
        _search_locally(search, choices, deadline)
    if relaxed.outcome is Outcome.HUNG or time.perf_counter() >= deadline:
        search.timed_out = True
    elif not search.is_done:
        with session.held(variables_of(made, integral)):
            _search_near(search, session, deadline)
        if session.is_lost:
            search.timed_out = True
        else:
            _search_all(search, session, deadline)
    log.info("%.6g us, bound %.6g us, gap %.3g", search.objective_us, search.bound_us, search.gap)
    return search


def _search_locally(search: _Search, choices: Choices, deadline: float) -> None:
    """Improve two plans by asynchronous moves: the best one, and the best one without such moves."""
    problem, now = search.problem, time.perf_counter()
    calm_s = max(_LEAST_S, _WITHOUT_FLIGHTS * (deadline - now))
    calm_problem = replace(problem, options=replace(problem.options, time_limit_s=calm_s))
    without = choices.without_flights
    made = _made([calm_problem], without)
    session = _session(made, problem.options) if made.is_open else None
    calm = _search(calm_problem, without, made, session, {}).best
    first = search.best
    entries = enumerate(zip(calm.tables, calm.entries, strict=True))
    search.propose(calm.journeys, {number: int(table.way[entry]) for number, (table, entry) in entries})
    target_us = search.bound_us / (1 - problem.options.gap) - problem.base_us
    plans = [first] if search.best is first else [first, search.best]
    each_s = _LOCALLY * (deadline - time.perf_counter()) / len(plans)
    for plan in plans:
        refine(plan, time.perf_counter() + each_s, target_us, problem.options.seed)
        search.keep(plan)


def _search_near(search: _Search, session: Session, deadline: float) -> None:
    """Let HiGHS decide the tensors that the relaxation left fractional, the others staying where it put them.

    Berthold's RENS (Mathematical Programming Computation, 2014) without rounding bounds: what it proves holds for
    these few tensors only, so only its plan is taken.
    """
    left_s = deadline - time.perf_counter()
    found = session.search(_NEAR_SHARE * left_s, _SOLVER_SHARE * search.problem.options.gap, warm=False)
    if found.has_solution:
        search.propose(journeys(search.made), ways(search.made))


def _search_all(search: _Search, session: Session, deadline: float) -> None:
    """Let HiGHS search the whole program from the best plan on, for the plan, the bound, or both."""
    left_s = deadline - time.perf_counter()
    if search.is_done or left_s <= 0:
        search.timed_out = not search.is_done
        return
    start_from(search.made, search.best.journeys, search.best.fast_bytes)
    found = session.search(left_s, _SOLVER_SHARE * search.problem.options.gap, warm=True)
    require_solved(found)
    search.timed_out = found.outcome is not Outcome.CONVERGED
    if found.has_solution:
        search.propose(journeys(search.made), ways(search.made))
    if found.bound is not None:
        search.raise_bound(found.bound * search.made.us_per_unit)


def _priced(problem: Problem, choices: Choices, made: Formulation, session: Session | None) -> _Search:
    """Prices from a relaxation that converged; else those at which nothing that is shared costs anything."""
    kernels = len(problem.graph.kernels)
    byte_us, engines = np.zeros(kernels), EnginePrices.zero(kernels)
    if session is not None:
        byte_us[list(made.reduced.rows)] = byte_prices(session, made)
        engines = engine_prices(session, made, kernels)
    prices = Prices(byte_us, slow_prices(session, made), engines)
    return _Search(problem, made, prices, problem.base_us + bound_us(choices, prices, problem.limit_bytes))


def _placement(search: _Search, build_s: float, solve_s: float) -> Placement:
    stays, moves, implementations = _plan(search.best)
    return Placement(
        stays=stays,
        moves=moves,
        implementations=implementations,
        bound_us=search.bound_us,
        bound_proof=search.proof,
        certificate=search.certificate(),
        status=search.status,
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


def _session(made: Formulation, options: SolveOptions) -> Session:
    with PauseGC():
        return Session(made.model, options.threads, options.seed)
