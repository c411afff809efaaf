"""Fast memory until it is full: `MPOL_PREFERRED` of set_mempolicy(2), simulated."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.plan import PagedPool
from autotm.solve.bases import PagedPlacement, settled
from autotm.solve.paging import PageMap, preferred
from autotm.solve.problem import Problem


class Preferred(PagedPlacement):
    """`MPOL_PREFERRED`: fast memory until it is full, then slow memory; first touch as it really is, by page."""

    name: ClassVar[str] = "linux-preferred"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """The first pages that are touched are fast."""
        fast_pages = problem.limit_bytes // pages.page_bytes
        return settled(offsets, size_bytes, pages, fast_pages, preferred(pages, fast_pages))
