"""Pages in both memories in turn: `MPOL_INTERLEAVE` of set_mempolicy(2), simulated."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.plan import PagedPool
from autotm.solve.bases import PagedPlacement, settled
from autotm.solve.paging import PageMap, interleaved
from autotm.solve.problem import Problem


class Interleave(PagedPlacement):
    """`MPOL_INTERLEAVE`: pages alternate between both memories while there is room in both."""

    name: ClassVar[str] = "linux-interleave"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """Every second page is fast, until fast memory is full."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        fast = interleaved(pages, fast_pages, (1, 1))
        return settled(offsets, size_bytes, pages, fast_pages, fast, (1, 1))
