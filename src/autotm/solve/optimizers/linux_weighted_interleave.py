"""Pages in both memories in turn, by weight: `MPOL_WEIGHTED_INTERLEAVE` of set_mempolicy(2), simulated."""

from __future__ import annotations

from typing import ClassVar

from autotm.model.files import BadInputError
from autotm.model.measurement import Link
from autotm.model.plan import PagedPool
from autotm.solve.bases import PagedPlacement, settled
from autotm.solve.paging import PageMap, interleave_weights, interleaved
from autotm.solve.problem import Problem


class WeightedInterleave(PagedPlacement):
    """`MPOL_WEIGHTED_INTERLEAVE`: the same, by weights that Linux makes from the bandwidths of both memories.

    It takes these from the firmware; here they are as calibrated: copies within fast memory, and of copies out of and
    into slow memory the slower.
    """

    name: ClassVar[str] = "linux-weighted-interleave"

    def pool(self, problem: Problem, offsets: tuple[int, ...], size_bytes: int, pages: PageMap) -> PagedPool:
        """As many pages in turn as the weights say, until fast memory is full.

        Raises:
            BadInputError: the machine's own rates were not measured.
        """
        rates = problem.links.rates
        if rates is None:
            raise BadInputError(
                f"optimizer '{self.name}': links.json lacks the rate of copies within fast memory; remove it and run "
                "the rule calibrate again"
            )
        slow = min(_bytes_per_s(problem.links.to_fast), _bytes_per_s(problem.links.to_slow))
        weights = interleave_weights(rates.copy_bytes_per_s, slow)
        fast_pages = problem.limit_bytes // pages.page_bytes
        fast = interleaved(pages, fast_pages, weights)
        return settled(offsets, size_bytes, pages, fast_pages, fast, weights)


def _bytes_per_s(link: Link) -> float:
    size, nanoseconds = link.points[-1]
    return size / nanoseconds * 1e9
