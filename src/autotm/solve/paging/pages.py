"""A pool cut into pages, and which of them each kernel touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotm.model.step import Graph, Kernel, configuration, slow_traffic

PAGE_BYTES = 4096
MOST_PAGES = 1 << 16
"""A pool of more pages than this (256 MiB of 4 KiB each) is simulated with larger ones, which move as a whole."""

Fast = npt.NDArray[np.bool_]
"""(pages,) whether each is in fast memory."""


@dataclass(frozen=True, slots=True)
class Touch:
    """A kernel's pass over one tensor: pages [first, stop) of the pool hold its bytes.

    Attributes:
        first, stop: pages.
        size_bytes: of the tensor.
        head_bytes, tail_bytes: of the first and of the last page that belong to others.
        pages: those that the kernel touches: all, or of a table that is looked up in as many as it has rows looked up,
            evenly spread.
    """

    first: int
    stop: int
    size_bytes: int
    head_bytes: int
    tail_bytes: int
    pages: slice | npt.NDArray[np.int64]

    def slow_bytes(self, fast: Fast, page_bytes: int) -> int:
        """Bytes of the tensor in slow pages."""
        if self.stop == self.first:
            return 0
        slow_pages = self.stop - self.first - int(np.count_nonzero(fast[self.first : self.stop]))
        beside = (0 if fast[self.first] else self.head_bytes) + (0 if fast[self.stop - 1] else self.tail_bytes)
        return slow_pages * page_bytes - beside


@dataclass(frozen=True)
class PageMap:
    """Which pages each kernel touches.

    Attributes:
        page_bytes: of a page.
        count: of pages in the pool.
        kernels: the touches of each kernel, a movable tensor each, by first slot.
        before: touches that fill the step's arguments before it runs for the first time.
    """

    page_bytes: int
    count: int
    kernels: tuple[tuple[Touch, ...], ...]
    before: tuple[Touch, ...] = ()

    @classmethod
    def of(cls, graph: Graph, offsets: Mapping[str, int], pool_bytes: int, page_bytes: int | None = None) -> PageMap:
        """The pages of a pool.

        Args:
            graph: the step with the implementations that run.
            offsets: of every movable tensor in the pool, bytes.
            pool_bytes: its size.
            page_bytes: of a page; by default the least that gives no more than `MOST_PAGES`.
        """
        size = page_bytes or PAGE_BYTES
        while page_bytes is None and pool_bytes > size * MOST_PAGES:
            size *= 2
        filled = [tensor for tensor in graph.movable if tensor.producer is None and tensor.held is not None]
        return cls(
            size,
            -(-pool_bytes // size),
            tuple(
                tuple(
                    touch(offsets[name], graph.by_name[name].size_bytes, size, _touched_bytes(graph, kernel, name))
                    for name in graph.slots_of(kernel)
                )
                for kernel in graph.kernels
            ),
            tuple(touch(offsets[tensor.name], tensor.size_bytes, size) for tensor in filled),
        )


def touch(start: int, size_bytes: int, page_bytes: int, touched_bytes: int | None = None) -> Touch:
    """A pass over bytes [start, start + size_bytes) of the pool, of which `touched_bytes` (None: all) are touched."""
    first, stop = start // page_bytes, -(-(start + size_bytes) // page_bytes) if size_bytes else start // page_bytes
    pages: slice | npt.NDArray[np.int64] = slice(first, stop)
    if touched_bytes is not None and touched_bytes < size_bytes:
        wanted = min(stop - first, -(-touched_bytes // page_bytes))
        pages = first + np.arange(wanted) * (stop - first) // max(wanted, 1)
    return Touch(first, stop, size_bytes, start - first * page_bytes, stop * page_bytes - start - size_bytes, pages)


def _touched_bytes(graph: Graph, kernel: Kernel, tensor: str) -> int:
    reads, writes = slow_traffic(graph, kernel, configuration(graph, kernel, {tensor}))
    return max(*reads, *writes, 0, 0)
