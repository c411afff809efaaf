"""The base of all optimizers: it refuses infeasible limits, and checks and prices what they decide."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyomo.core as pyo
from pyomo.common.gc_manager import PauseGC

from autotm.model.cache import CachedPool, PagedPool
from autotm.model.files import hash_of
from autotm.model.limit import Limit, counted_by
from autotm.model.plan import Certificate, Move, Plan, Status, Stay
from autotm.solve.choices import Choices, require_feasible
from autotm.solve.problem import Problem
from autotm.solve.recheck import cached_us, paged_us, price


@dataclass(frozen=True)
class Placement:
    """The decisions of an optimizer.

    Attributes:
        stays, moves: in any order.
        implementations: the chosen implementation by kernel; other kernels have their default.
        bound_us: proven lower bound on the objective; None where the optimizer has exactly one plan.
        certificate: proof of that bound.
        status: how the search ended.
        build_s, solve_s: seconds spent.
        solver_bound_us: a higher bound that a solver claims; None where it claims none.
        calls: kernels in the order in which they are called, where some run again.
        offsets: address of each stay, where the optimizer decides addresses.
        cached, paged: the simulated pool, where hardware or Linux places the data; it predicts the step's time.
    """

    stays: Sequence[Stay]
    moves: Sequence[Move] = ()
    implementations: Mapping[int, str] = field(default_factory=dict)
    bound_us: float | None = None
    certificate: Certificate | None = None
    status: Status = Status.NOT_OPTIMIZED
    build_s: float = 0.0
    solve_s: float = 0.0
    solver_bound_us: float | None = None
    calls: tuple[int, ...] = ()
    offsets: Mapping[Stay, int] = field(default_factory=dict)
    cached: CachedPool | None = None
    paged: PagedPool | None = None


class Optimizer(ABC):
    """A way to decide a placement; a subclass says which choices each tensor has and picks among them.

    Attributes:
        name: the name under which users ask for it.
    """

    name: ClassVar[str]

    @abstractmethod
    def choices(self, problem: Problem) -> Choices:
        """Return the choices of each tensor and kernel."""

    @abstractmethod
    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Choose a placement; the limit is known to be feasible."""

    def place_all(self, problems: Sequence[Problem], choices: Choices) -> Iterator[Placement]:
        """Choose a placement for each of several problems that differ in their limit only, ascending; time each."""
        for problem in problems:
            started = time.perf_counter()
            placement = self.place(problem, choices)
            yield replace(placement, build_s=time.perf_counter() - started - placement.solve_s)

    def program(self, problem: Problem) -> pyo.ConcreteModel | None:
        """Return the integer program that `place` solves; None where the optimizer or the reductions leave none."""
        del problem
        return None

    def solve(self, problem: Problem) -> Plan:
        """Return the plan for a problem, checked in integers and priced from the profile whatever the search claims.

        Raises:
            InfeasibleLimitError: what has to be fast exceeds the limit.
            SolverDefectError: the search returned something illegal.
        """
        return self.sweep(problem, [problem.limit])[0]

    def sweep(self, problem: Problem, limits: Sequence[Limit]) -> tuple[Plan, ...]:
        """Return a plan for each limit, in the order given; as good as `solve` of each, with shared work done once.

        Raises:
            as `solve`, before anything is solved where a limit is infeasible.
        """
        # Of what is made here nearly all is kept until the end: looking for what is not took 6 to 14 % of the time.
        with PauseGC():
            choices = self.choices(problem)
            problems = [problem.at(limit) for limit in limits]
            for each in problems:
                require_feasible(each, choices, self.name)
            ascending = sorted(range(len(problems)), key=lambda index: problems[index].limit_bytes)
            placements = self.place_all([problems[index] for index in ascending], choices)
            plans = {at: self._plan(problems[at], each) for at, each in zip(ascending, placements, strict=True)}
            return tuple(plans[index] for index in range(len(problems)))

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        stays = tuple(sorted(placement.stays, key=lambda stay: stay.order))
        moves = tuple(sorted(placement.moves, key=lambda move: move.order))
        kernels = problem.graph.kernels
        implementations = tuple(placement.implementations.get(i, k.implementation) for i, k in enumerate(kernels))
        is_default = all(name == kernel.implementation for name, kernel in zip(implementations, kernels, strict=True))
        configurations, objective_us = price(problem, stays, moves, implementations, self.name, placement.calls)
        if placement.cached is not None:
            objective_us = cached_us(problem, placement.cached)
        if placement.paged is not None:
            objective_us = paged_us(problem, placement.paged)
        bound_us = objective_us if placement.bound_us is None else min(placement.bound_us, objective_us)
        return Plan(
            graph_hash=hash_of(problem.graph),
            optimizer=self.name,
            limit=problem.limit,
            dram_limit_bytes=problem.limit_bytes,
            counts=counted_by(problem.graph),
            stays=stays,
            moves=moves,
            implementations=() if is_default else implementations,
            tabled=tuple(sorted(problem.tabulation.tabled)),
            configurations=configurations,
            objective_us=objective_us,
            bound_us=bound_us,
            status=placement.status,
            build_s=placement.build_s,
            solve_s=placement.solve_s,
            certificate=placement.certificate,
            solver_bound_us=placement.solver_bound_us,
            attempts_s=((placement.build_s, placement.solve_s),),
            calls=placement.calls,
            offsets=tuple(placement.offsets[stay] for stay in stays) if placement.offsets else (),
            cached=placement.cached,
            paged=placement.paged,
        )
