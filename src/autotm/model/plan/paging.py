"""A plain step in one pool whose pages an operating system places: in fast or in slow memory, each page for itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autotm.model.step import Graph, configuration, slow_traffic

PlacedBy = Literal["simulated", "linux"]
"""Whether pages were placed by a simulation of the kernel's rules, or by the kernel itself."""


@dataclass(frozen=True, slots=True)
class PagedTraffic:
    """What pages cost one kernel of the step, bytes.

    Attributes:
        slow_read, slow_written: of its operands, in slow pages.
        promoted, demoted: of pages that move to fast and to slow memory meanwhile.
    """

    slow_read: int
    slow_written: int
    promoted: int
    demoted: int


@dataclass(frozen=True)
class PagedPool:
    """A pool of pages, and where each kernel of the step finds its operands, once that has become steady.

    Where pages move, numbers of bytes are means over the last steps that were simulated.

    Attributes:
        offsets: byte offset of each stay of the plan.
        size_bytes: of the pool.
        page_bytes: of a page: 4 KiB, or, of large pools, a power of two times that.
        fast_pages: that fast memory holds at most.
        most_fast_pages: the most that it held.
        weights: consecutive pages that go to fast and to slow memory in turn; None where none do.
        slow_bytes: by kernel, of each of its movable tensors by first slot, the bytes in slow pages.
        promoted_bytes, demoted_bytes: by kernel, of pages that move to fast and to slow memory.
        steps: simulated until then.
        is_steady: whether the last of them took as long as those before.
        placed_by: `simulated`, or `linux`.
    """

    offsets: tuple[int, ...]
    size_bytes: int
    page_bytes: int
    fast_pages: int
    most_fast_pages: int
    weights: tuple[int, int] | None
    slow_bytes: tuple[tuple[int, ...], ...]
    promoted_bytes: tuple[int, ...]
    demoted_bytes: tuple[int, ...]
    steps: int
    is_steady: bool
    placed_by: PlacedBy = "simulated"

    @property
    def fast_bytes(self) -> int:
        """Fast memory that pages took at most."""
        return self.most_fast_pages * self.page_bytes

    def traffic(self, graph: Graph) -> Iterator[PagedTraffic]:
        """What each kernel of `graph`, the step with the implementations that run, is charged for.

        A kernel that touches part of a tensor finds as large a share of that part slow as of the whole.
        """
        for number, (kernel, slow_bytes) in enumerate(zip(graph.kernels, self.slow_bytes, strict=True)):
            read = written = 0
            for tensor, slow in zip(graph.slots_of(kernel), slow_bytes, strict=True):
                reads, writes = slow_traffic(graph, kernel, configuration(graph, kernel, {tensor}))
                size = graph.by_name[tensor].size_bytes
                read += sum(reads) * slow // size if size else 0
                written += sum(writes) * slow // size if size else 0
            yield PagedTraffic(read, written, self.promoted_bytes[number], self.demoted_bytes[number])


@dataclass(frozen=True)
class PageCounts:
    """What pages cost one step.

    Attributes:
        placed_by: `simulated`: by the kernel's rules, written anew; `linux`: by the kernel.
        page_bytes: of a page.
        most_fast_bytes: that pages took of fast memory at most; by the kernel: before or after timing.
        slow_read_bytes, slow_written_bytes: of kernels' operands, in slow pages.
        promoted_bytes, demoted_bytes: of pages that moved to fast and to slow memory; by the kernel: of the whole
            system, as it counts them.
        steps: simulated, or by the kernel run, before.
        is_steady: whether the last of them took as long as those before.
    """

    placed_by: str
    page_bytes: int
    most_fast_bytes: int
    slow_read_bytes: int
    slow_written_bytes: int
    promoted_bytes: int
    demoted_bytes: int
    steps: int
    is_steady: bool

    @classmethod
    def of(cls, pool: PagedPool, graph: Graph) -> PageCounts:
        """The sums over the kernels of `graph`, the step with the implementations that run."""
        traffic = list(pool.traffic(graph))
        return cls(
            pool.placed_by,
            pool.page_bytes,
            pool.fast_bytes,
            sum(each.slow_read for each in traffic),
            sum(each.slow_written for each in traffic),
            sum(pool.promoted_bytes),
            sum(pool.demoted_bytes),
            pool.steps,
            pool.is_steady,
        )
