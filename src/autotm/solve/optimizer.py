"""Base classes of optimizers: they refuse infeasible limits, and check and price the result; some need no search."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyomo.core as pyo

from autotm.model.cache import CachedPool, PagedPool
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Limit, counted_by
from autotm.model.plan import Certificate, Move, Plan, Status, Stay
from autotm.solve.choices import Choices, flows_in, require_feasible
from autotm.solve.paging import Fast, PageMap, first_fit, interleaved, preferred
from autotm.solve.problem import Problem
from autotm.solve.recheck import paged_us, price
from autotm.solve.residencies import Residency, all_slow, stays_and_moves


@dataclass(frozen=True)
class Placement:
    """The decisions of an optimizer.

    Attributes:
        stays, moves: in any order.
        implementations: the chosen implementation by kernel; other kernels have their default.
        bound_us: proven lower bound on the objective; None where the optimizer has exactly one plan.
        certificate: proof of that bound.
        solver_bound_us: a higher bound that a solver claims; None where it claims none.
        status: how the search ended.
        build_s, solve_s: seconds spent.
        calls: kernels in the order in which they are called, where some run again.
        offsets: address of each stay, where the optimizer decides addresses.
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
        """Choose a placement for each of several problems that differ in their limit only, ascending."""
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
        plans = {index: self._plan(problems[index], each) for index, each in zip(ascending, placements, strict=True)}
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
            limit=problem.limit,
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


class SingleTier(Optimizer):
    """The one plan that the flows allow, by default implementations: fast where they must be fast, slow elsewhere."""

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """State the plan; there is nothing to search."""
        del problem
        started = time.perf_counter()
        stays = []
        for flow in choices.flows:
            residency = Residency((True,), ()) if flow.must[0] else all_slow(flow)
            stays += stays_and_moves(flow, residency)[0]
        build_s = time.perf_counter() - started
        return Placement(stays, (), {}, None, None, Status.NOT_OPTIMIZED, build_s, 0.0)

    def _slow_for_life(self, problem: Problem, why: str = "") -> Choices:
        """Everything in slow memory; `why` ends the message to who asks for a fast tensor.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        if problem.options.fast_operands_only:
            raise BadInputError(f"optimizer '{self.name}': kernels here need fast operands; use 'synchronous'")
        for tensor, tier in problem.options.fixed.items():
            if tier is Tier.FAST:
                raise BadInputError(
                    f"optimizer '{self.name}': tensor '{tensor}' is fixed in fast memory{why}; use 'static'"
                )
        return Choices(flows_in(problem, Tier.SLOW))


class PagedPlacement(SingleTier):
    """A plain step in one pool whose pages an operating system places: the policy is simulated page by page."""

    def choices(self, problem: Problem) -> Choices:
        """One pool for all tensors.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in one memory.
        """
        for tensor in problem.options.fixed:
            raise BadInputError(
                f"optimizer '{self.name}': tensor '{tensor}' is fixed in one memory, but Linux places pages here; "
                "use 'static'"
            )
        return self._slow_for_life(problem)

    def weights(self, problem: Problem) -> tuple[int, int] | None:
        """Consecutive pages that are dealt to fast and to slow memory in turn; None to fill fast memory first."""
        del problem
        return None

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Where the policy has the pages while the step runs, of which fast memory holds the problem's limit.

        A page stays where it is when it is first touched.

        Args:
            problem: a problem whose limit is not all of memory.
            offsets: the address of each stay.
            size_bytes: size of the pool.
            pages: pages that the step touches.
        """
        fast_pages, weights = problem.limit_bytes // pages.page_bytes, self.weights(problem)
        fast = preferred(pages, fast_pages) if weights is None else interleaved(pages, fast_pages, weights)
        return _unmoved(offsets, size_bytes, pages, fast_pages, fast, weights)

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        """The plan with its addresses, priced by how many bytes of each operand are in slow pages."""
        started = time.perf_counter()
        plan = super()._plan(problem, placement)
        graph = problem.graph.computed_by(())
        by_name, size_bytes = first_fit(graph)
        offsets, pages = tuple(by_name[stay.tensor] for stay in plan.stays), PageMap.of(graph, by_name, size_bytes)
        # A ratio 0:n is a machine without slow memory.
        if problem.limit.is_unlimited:
            paged = _unmoved(offsets, size_bytes, pages, pages.count, preferred(pages, pages.count), None)
        else:
            paged = self.pool(problem, offsets, size_bytes, pages)
        return with_pool(plan, paged_us(problem, paged), started, paged=paged)


def _unmoved(
    offsets: tuple[int, ...],
    size_bytes: int,
    pages: PageMap,
    fast_pages: int,
    fast: Fast,
    weights: tuple[int, int] | None,
) -> PagedPool:
    """A pool whose pages never move; `fast`, of shape (pages,), says which of them are in fast memory."""
    slow_bytes = tuple(tuple(each.slow_bytes(fast, pages.page_bytes) for each in touches) for touches in pages.kernels)
    still = (0,) * len(slow_bytes)
    return PagedPool(
        offsets, size_bytes, pages.page_bytes, fast_pages, int(fast.sum()), weights, slow_bytes, still, still, 1, True
    )


def with_pool(
    plan: Plan, step_us: float, started: float, cached: CachedPool | None = None, paged: PagedPool | None = None
) -> Plan:
    """A plan with its simulated pool, on which `step_us` is also the bound; `started` is of `time.perf_counter`."""
    build_s = plan.build_s + time.perf_counter() - started
    attempts_s = ((build_s, 0.0),)
    return replace(
        plan, objective_us=step_us, bound_us=step_us, build_s=build_s, attempts_s=attempts_s, cached=cached, paged=paged
    )


class Rival(Optimizer):
    """An existing method for a step that exceeds a GPU's memory: one plan, by a rule that knows no later step.

    The plan may take more fast memory than the limit.
    """

    def choices(self, problem: Problem) -> Choices:
        """Return no choices at all, so that no limit is too small.

        Raises:
            BadInputError: kernels can use slow operands, so this is no GPU; or a tensor is fixed in one memory.
        """
        if not problem.options.fast_operands_only:
            raise BadInputError(f"optimizer '{self.name}': it is what others do on a GPU; use 'synchronous'")
        for tensor in problem.options.fixed:
            raise BadInputError(f"optimizer '{self.name}': tensor '{tensor}' is fixed in one memory; use 'static'")
        return Choices(())

    def place(self, problem: Problem, choices: Choices) -> Placement:
        """State the plan; there is nothing to search."""
        del choices
        started = time.perf_counter()
        placement = self.rule(problem)
        return replace(placement, build_s=time.perf_counter() - started)

    @abstractmethod
    def rule(self, problem: Problem) -> Placement:
        """Return the placement that the rule decides; `ruled` builds it from stays and moves."""


def ruled(
    graph: Graph,
    stays: Sequence[Stay],
    moves: Sequence[Move] = (),
    calls: tuple[int, ...] = (),
    offsets: Mapping[Stay, int] | None = None,
) -> Placement:
    """Return the placement that a rule decides for `graph`, the step by the implementations that run.

    `calls` and `offsets` are those of `Placement`.
    """
    implementations = {index: kernel.implementation for index, kernel in enumerate(graph.kernels)}
    return Placement(
        stays,
        moves,
        implementations,
        bound_us=None,
        certificate=None,
        status=Status.NOT_OPTIMIZED,
        build_s=0.0,
        solve_s=0.0,
        calls=calls,
        offsets=offsets or {},
    )
