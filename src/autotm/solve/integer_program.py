"""The search that `static` and `synchronous` share: reduce, relax, repair, and search on where the gap is too wide."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.model.plan import BoundProof, Certificate, Status
from autotm.solve.base import Optimizer, Placement
from autotm.solve.certificate import bound_us
from autotm.solve.flow import Flow
from autotm.solve.formulation import Formulation, build
from autotm.solve.highs import Outcome, Session, Solved, require_solved
from autotm.solve.journey import Journey, cost_us, stays_and_moves
from autotm.solve.problem import Problem
from autotm.solve.prune import Reduced, reduce
from autotm.solve.repair import Repair

log = logging.getLogger(__name__)

_OPTIMAL_GAP = 1e-9
_SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""


@dataclass
class _Search:
    """The best journeys and the best bound so far."""

    repair: Repair
    base_us: float
    bound_us: float
    prices: npt.NDArray[np.float64]
    proof: BoundProof = BoundProof.PRICES
    timed_out: bool = False

    @property
    def objective_us(self) -> float:
        return self.base_us + self.repair.cost_us

    @property
    def gap(self) -> float:
        return (self.objective_us - self.bound_us) / self.objective_us if self.objective_us > 0 else 0.0

    def status(self, target: float) -> Status:
        if self.gap <= _OPTIMAL_GAP:
            return Status.OPTIMAL
        if self.gap <= target:
            return Status.WITHIN_GAP
        return Status.TIME_LIMIT if self.timed_out else Status.ABOVE_GAP


class IntegerProgram(Optimizer):
    """An optimizer whose plan solves the compact formulation over its flows."""

    @abstractmethod
    def flows(self, problem: Problem) -> tuple[Flow, ...]:
        """The choices of every movable tensor."""

    def place(self, problem: Problem, flows: tuple[Flow, ...]) -> Placement:
        """Search until the gap or the time limit is reached."""
        started = time.perf_counter()
        kernels = len(problem.graph.kernels)
        reduced = reduce(flows, problem.limit_bytes, kernels)
        constant_us = problem.base_us + sum(cost_us(reduced.flows[i], way) for i, way in reduced.decided.items())
        made = build(reduced, constant_us) if len(reduced.decided) < len(flows) else None
        built = time.perf_counter()
        search = self._decide(problem, flows, reduced) if made is None else self._search(problem, flows, made, built)
        stays, moves = [], []
        for index, flow in enumerate(reduced.flows):
            tensor_stays, tensor_moves = stays_and_moves(flow, search.repair.journeys[index])
            stays += tensor_stays
            moves += tensor_moves
        return Placement(
            stays=stays,
            moves=moves,
            bound_us=search.bound_us,
            bound_proof=search.proof,
            certificate=Certificate(tuple(float(price) for price in search.prices)),
            status=search.status(problem.options.gap),
            build_s=built - started,
            solve_s=time.perf_counter() - built,
        )

    def _decide(self, problem: Problem, flows: Sequence[Flow], reduced: Reduced) -> _Search:
        """Nothing is left for a solver."""
        repair = _repaired(problem, reduced, reduced.decided)
        return _priced(problem, flows, repair, np.zeros(len(problem.graph.kernels)))

    def _search(self, problem: Problem, flows: Sequence[Flow], made: Formulation, started: float) -> _Search:
        options = problem.options
        session = Session(made.model, options.threads, options.seed)
        relaxed = session.relax(options.time_limit_s)
        require_solved(relaxed)
        prices = np.zeros(len(problem.graph.kernels))
        proposed: dict[int, Journey] = dict(made.reduced.decided)
        if relaxed.outcome is Outcome.CONVERGED:
            prices[list(made.reduced.rows)] = _prices(session, made)
        if relaxed.has_solution:
            proposed |= made.journeys()
        repair = _repaired(problem, made.reduced, proposed)
        search = _priced(problem, flows, repair, prices)
        left_s = options.time_limit_s - (time.perf_counter() - started)
        if relaxed.outcome is Outcome.HUNG or left_s <= 0:
            search.timed_out = True
        elif search.gap > options.gap:
            made.start_from(search.repair.journeys)
            found = session.search(left_s, _SOLVER_SHARE * options.gap, warm=True)
            require_solved(found)
            _adopt(problem, made, found, search)
        log.info("%.6g us, bound %.6g us, gap %.3g", search.objective_us, search.bound_us, search.gap)
        return search


def _prices(session: Session, made: Formulation) -> npt.NDArray[np.float64]:
    """Price of a byte at each row: minus the reduced cost of `u` at its upper bound."""
    costs = np.array(session.reduced_costs([made.model.u[row] for row in range(len(made.reduced.rows))]))
    prices: npt.NDArray[np.float64] = np.maximum(0.0, -costs) * (made.us_per_unit / made.bytes_per_unit)
    return prices


def _repaired(problem: Problem, reduced: Reduced, proposed: Mapping[int, Journey]) -> Repair:
    repair = Repair(reduced.flows, problem.limit_bytes, len(problem.graph.kernels))
    repair.accept(proposed)
    repair.complete()
    repair.improve()
    return repair


def _priced(problem: Problem, flows: Sequence[Flow], repair: Repair, prices: npt.NDArray[np.float64]) -> _Search:
    bound = bound_us(flows, prices, problem.limit_bytes, problem.base_us)
    return _Search(repair, problem.base_us, bound, prices)


def _adopt(problem: Problem, made: Formulation, found: Solved, search: _Search) -> None:
    """Keep what the integer search improved: the plan after an exact repair, the bound, or both."""
    search.timed_out = found.outcome is not Outcome.CONVERGED
    if found.has_solution:
        repair = _repaired(problem, made.reduced, made.reduced.decided | made.journeys())
        if repair.cost_us < search.repair.cost_us:
            search.repair = repair
    if found.bound is not None and found.bound * made.us_per_unit > search.bound_us:
        search.bound_us = min(found.bound * made.us_per_unit, search.objective_us)
        search.proof = BoundProof.BRANCH_AND_BOUND
