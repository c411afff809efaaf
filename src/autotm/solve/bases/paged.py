"""Plain steps whose pages an operating system places: nothing is planned, the policy is simulated page by page."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace

from autotm.model.files import BadInputError
from autotm.model.plan import PagedPool, Plan
from autotm.solve.bases.base import Placement
from autotm.solve.bases.first_fit import first_fit
from autotm.solve.bases.recheck import paged_us
from autotm.solve.bases.single_tier import SingleTier
from autotm.solve.paging import Fast, PageMap, preferred
from autotm.solve.problem import Choices, Problem


class PagedPlacement(SingleTier):
    """Every tensor in one pool, at the addresses of a plain program; a policy of Linux decides where its pages are."""

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

    @abstractmethod
    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Where the policy has the pages while the step runs, of which fast memory holds the problem's limit.

        Args:
            problem: with a limit that is not all of memory.
            offsets: of each stay.
            size_bytes: of the pool.
            pages: that the step touches.
        """

    def _plan(self, problem: Problem, placement: Placement) -> Plan:
        """The plan with its addresses, priced by how many bytes of each operand are in slow pages."""
        started = time.perf_counter()
        plan = super()._plan(problem, placement)
        graph = problem.graph.computed_by(())
        found, size_bytes = first_fit(graph)
        offsets, pages = tuple(found[stay.tensor] for stay in plan.stays), PageMap.of(graph, found, size_bytes)
        # A ratio 0:n is a machine without slow memory.
        if problem.limit.slow == 0:
            paged = _everything_fast(offsets, size_bytes, pages)
        else:
            paged = self.pool(problem, offsets, size_bytes, pages)
        step_us = paged_us(problem, paged)
        build_s = plan.build_s + time.perf_counter() - started
        return replace(
            plan, paged=paged, objective_us=step_us, bound_us=step_us, build_s=build_s, attempts_s=((build_s, 0.0),)
        )


def settled(
    offsets: tuple[int, ...],
    size_bytes: int,
    pages: PageMap,
    fast_pages: int,
    fast: Fast,
    weights: tuple[int, int] | None = None,
) -> PagedPool:
    """A pool whose pages never move.

    Args:
        offsets: of each stay.
        size_bytes: of the pool.
        pages: that the step touches.
        fast_pages: that fast memory holds.
        fast: (pages,) whether each is there.
        weights: consecutive pages that were dealt to fast and to slow memory in turn.
    """
    slow_bytes = tuple(tuple(each.slow_bytes(fast, pages.page_bytes) for each in touches) for touches in pages.kernels)
    still = (0,) * len(slow_bytes)
    return PagedPool(
        offsets, size_bytes, pages.page_bytes, fast_pages, int(fast.sum()), weights, slow_bytes, still, still, 1, True
    )


def _everything_fast(offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
    return settled(offsets, size_bytes, pages, pages.count, preferred(pages, pages.count))
