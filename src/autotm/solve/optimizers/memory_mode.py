"""Memory mode (2LM): nothing is placed. All memory is slow, and fast memory of the limit's size is its cache.

The baseline of AutoTM's large networks (Hildebrand et al., ASPLOS 2020): the plain step in one pool, whose addresses a
plain framework would give: first fit in execution order, as nGraph did.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from autotm.model.plan import Plan, cached_pool
from autotm.solve.bases import Placement, SingleTier, cached_us, first_fit
from autotm.solve.problem import Choices, Problem


class MemoryMode(SingleTier):
    """Every tensor in slow memory, behind a cache."""

    name: ClassVar[str] = "memory-mode"

    def choices(self, problem: Problem) -> Choices:
        """Slow for life.

        Raises:
            BadInputError: kernels need fast operands, or a tensor is fixed in fast memory.
        """
        return self._slow_for_life(problem, ", which is a cache here")

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        """The plan with its addresses, priced by what its kernels miss in the cache."""
        started = time.perf_counter()
        plan = super()._plan(problem, placement)
        graph = problem.graph.computed_by(())
        offsets, pool_bytes = first_fit(graph)
        # A ratio 0:n is no limit: there the cache holds the pool, fragments included.
        cache_bytes = None if problem.limit.slow == 0 else problem.limit_bytes
        order = tuple(stay.tensor for stay in plan.stays)
        pool = cached_pool(graph, offsets, order, pool_bytes, cache_bytes)
        step_us = cached_us(problem, pool)
        build_s = plan.build_s + time.perf_counter() - started
        return replace(
            plan, cached=pool, objective_us=step_us, bound_us=step_us, build_s=build_s, attempts_s=((build_s, 0.0),)
        )
