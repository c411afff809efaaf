"""NUMA balancing of Linux in its mode for tiered memory (TPP and what became of it), simulated."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.plan import PagedPool
from autotm.solve.bases import PagedPlacement
from autotm.solve.paging import PageMap, StepCosts, balanced
from autotm.solve.problem import Problem


class Balanced(PagedPlacement):
    """`numa_balancing` 2 with `demotion_enabled`: touched pages move to fast memory, long unused ones away."""

    name: ClassVar[str] = "linux-balancing"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Where pages are, on average over the steps, once the time of a step is steady."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        costs = StepCosts.of(problem, problem.graph.computed_by(()))
        found = balanced(pages, fast_pages, costs, problem.options.seed)
        return PagedPool(
            offsets,
            size_bytes,
            pages.page_bytes,
            fast_pages,
            found.most_fast_pages,
            None,
            found.slow_bytes,
            found.promoted_bytes,
            found.demoted_bytes,
            found.steps,
            found.is_steady,
        )
