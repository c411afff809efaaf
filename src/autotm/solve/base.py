"""What every optimizer shares: refuse the impossible before, check and price the result after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from autotm.model.counting import counted_by
from autotm.model.files import hash_of
from autotm.model.plan import BoundProof, Certificate, Move, Plan, Status, Stay
from autotm.solve.feasible import require_feasible
from autotm.solve.flow import Flow
from autotm.solve.journey import move_order, stay_order
from autotm.solve.problem import Problem
from autotm.solve.recheck import price


@dataclass(frozen=True)
class Placement:
    """What an optimizer found.

    Attributes:
        stays, moves: in any order.
        bound_us: proven lower bound on the objective; None where the optimizer has exactly one plan.
        bound_proof, certificate: what proves it.
        status: how the search ended.
        build_s, solve_s: seconds spent.
    """

    stays: Sequence[Stay]
    moves: Sequence[Move]
    bound_us: float | None
    bound_proof: BoundProof
    certificate: Certificate | None
    status: Status
    build_s: float
    solve_s: float


class Optimizer(ABC):
    """A way to decide a placement; a subclass says which choices each tensor has and picks among them.

    Attributes:
        name: under which users ask for it.
    """

    name: ClassVar[str]

    @abstractmethod
    def flows(self, problem: Problem) -> tuple[Flow, ...]:
        """The choices of every movable tensor."""

    @abstractmethod
    def place(self, problem: Problem, flows: tuple[Flow, ...]) -> Placement:
        """Choose; the limit is known to be feasible for the flows."""

    def solve(self, problem: Problem) -> Plan:
        """The plan for a problem, checked in integers and priced from the profile whatever the search claims.

        Raises:
            InfeasibleLimitError: what has to be fast exceeds the limit.
            SolverDefectError: the search returned something illegal.
        """
        flows = self.flows(problem)
        require_feasible(problem, flows, self.name)
        placement = self.place(problem, flows)
        stays = tuple(sorted(placement.stays, key=stay_order))
        moves = tuple(sorted(placement.moves, key=move_order))
        configurations, objective_us = price(problem, stays, moves)
        bound_us = objective_us if placement.bound_us is None else min(placement.bound_us, objective_us)
        return Plan(
            graph_hash=hash_of(problem.graph),
            optimizer=self.name,
            limit=str(problem.limit),
            dram_limit_bytes=problem.limit_bytes,
            counts=counted_by(problem.graph),
            stays=stays,
            moves=moves,
            configurations=configurations,
            objective_us=objective_us,
            bound_us=bound_us,
            status=placement.status,
            build_s=placement.build_s,
            solve_s=placement.solve_s,
            certificate=placement.certificate,
            bound_proof=placement.bound_proof,
            attempts_s=((placement.build_s, placement.solve_s),),
        )
