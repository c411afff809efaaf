"""What every optimizer shares: refuse the impossible before, check and price the result after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyomo.core as pyo

from autotm.model.files import hash_of
from autotm.model.plan import Certificate, Move, Plan, Status, Stay
from autotm.model.step import Limit, counted_by
from autotm.solve.bases.recheck import price
from autotm.solve.problem import Choices, Problem, require_feasible


@dataclass(frozen=True)
class Placement:
    """What an optimizer found.

    Attributes:
        stays, moves: in any order.
        implementations: chosen ones by kernel; the others have their default.
        bound_us: proven lower bound on the objective; None where the optimizer has exactly one plan.
        certificate: what proves it.
        solver_bound_us: a higher one that a solver claims, if it does.
        status: how the search ended.
        build_s, solve_s: seconds spent.
        calls: kernels in the order in which they are called, where some run again.
        offsets: by stay, where it decides them.
    """

    stays: Sequence[Stay]
    moves: Sequence[Move]
    implementations: Mapping[int, str]
    bound_us: float | None
    certificate: Certificate | None
    status: Status
    build_s: float
    solve_s: float
    solver_bound_us: float | None = None
    calls: tuple[int, ...] = ()
    offsets: Mapping[Stay, int] = field(default_factory=dict)


class Optimizer(ABC):
    """A way to decide a placement; a subclass says which choices each tensor has and picks among them.

    Attributes:
        name: under which users ask for it.
    """

    name: ClassVar[str]

    @abstractmethod
    def choices(self, problem: Problem) -> Choices:
        """What there is to choose from."""

    @abstractmethod
    def place(self, problem: Problem, choices: Choices) -> Placement:
        """Choose; the limit is known to be feasible."""

    def place_all(self, problems: Sequence[Problem], choices: Choices) -> Iterator[Placement]:
        """Choose for each of several problems that differ in their limit only, ascending."""
        return (self.place(problem, choices) for problem in problems)

    def program(self, problem: Problem) -> pyo.ConcreteModel | None:
        """The integer program that `place` solves; None where the optimizer or the reductions leave none."""
        del problem
        return None

    def solve(self, problem: Problem) -> Plan:
        """The plan for a problem, checked in integers and priced from the profile whatever the search claims.

        Raises:
            InfeasibleLimitError: what has to be fast exceeds the limit.
            SolverDefectError: the search returned something illegal.
        """
        choices = self.choices(problem)
        require_feasible(problem, choices, self.name)
        return self._plan(problem, self.place(problem, choices))

    def sweep(self, problem: Problem, limits: Sequence[Limit]) -> tuple[Plan, ...]:
        """A plan for each limit, in the order given; as good as `solve` of each, with shared work done once.

        Raises:
            as `solve`, before anything is solved where a limit is infeasible.
        """
        choices = self.choices(problem)
        problems = [problem.at(limit) for limit in limits]
        for each in problems:
            require_feasible(each, choices, self.name)
        ascending = sorted(range(len(problems)), key=lambda index: problems[index].limit_bytes)
        placements = self.place_all([problems[index] for index in ascending], choices)
        plans = {index: self._plan(problems[index], found) for index, found in zip(ascending, placements, strict=True)}
        return tuple(plans[index] for index in range(len(problems)))

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        stays = tuple(sorted(placement.stays, key=lambda stay: stay.order))
        moves = tuple(sorted(placement.moves, key=lambda move: move.order))
        kernels = problem.graph.kernels
        implementations = tuple(placement.implementations.get(i, k.implementation) for i, k in enumerate(kernels))
        is_default = all(name == kernel.implementation for name, kernel in zip(implementations, kernels, strict=True))
        configurations, objective_us = price(problem, stays, moves, implementations, self.name, placement.calls)
        bound_us = objective_us if placement.bound_us is None else min(placement.bound_us, objective_us)
        return Plan(
            graph_hash=hash_of(problem.graph),
            optimizer=self.name,
            limit=str(problem.limit),
            dram_limit_bytes=problem.limit_bytes,
            counts=counted_by(problem.graph),
            stays=stays,
            moves=moves,
            implementations=() if is_default else implementations,
            tabled=problem.tabulation.tabled,
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
        )
