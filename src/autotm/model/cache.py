"""Plain steps in one pool of memory in which something other than a plan places data.

Memory mode (2LM) is a direct-mapped write-back cache, which is simulated; elsewhere an operating system places pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Literal

import numpy as np
import numpy.typing as npt

from autotm.model.graph import Graph, Kernel, configuration, slow_traffic

# Memory mode (2LM): fast memory as a direct-mapped write-back cache of slow memory, simulated for one step.
#
# The model needs no hardware, so it lies where plans are made and where they run. A pool in slow memory is cut into
# blocks; block b has one place in the cache, its set b mod (number of sets). A kernel passes over each of its tensors
# once, in the order of its slots. A block that is not in its set is a miss: it is fetched from slow memory, also
# where it is then overwritten, as the hardware does; if what it displaces was written since it was fetched, the miss
# is dirty, and that block is written back. The cache does not know which tensors are dead.
#
# The hardware also reads fast memory to look up a tag before it writes a line, and writes it to fill one
# (`amplified_bytes`).
#
# What the model leaves out: blocks that two operands of one kernel take from each other more than once, and physical
# addresses, which a system spreads over the cache page by page.

BLOCK_BYTES = 4096
MOST_BLOCKS = 1 << 24
"""A pool of more blocks than this (64 GiB of 4 KiB each) is modelled with larger ones."""


@dataclass(frozen=True)
class CachedPool:
    """A pool in slow memory behind a cache, and what each kernel of the step finds there, from the second step on.

    Attributes:
        offsets: byte offset of each stay of the plan: hits and misses depend on them, so the plan decides them.
        size_bytes: of the pool.
        block_bytes: of a block of pool and cache; a power of two.
        cache_blocks: sets of the cache; 0 is no cache: every pass over a block is a miss that displaces it at once.
        hits, clean_misses, dirty_misses: blocks, by kernel.
    """

    offsets: tuple[int, ...]
    size_bytes: int
    block_bytes: int
    cache_blocks: int
    hits: tuple[int, ...]
    clean_misses: tuple[int, ...]
    dirty_misses: tuple[int, ...]

    @property
    def fast_bytes(self) -> int:
        """Fast memory that the cache takes."""
        return self.cache_blocks * self.block_bytes

    @property
    def traffic_bytes(self) -> tuple[tuple[int, int], ...]:
        """Bytes that each kernel has fetched from slow memory, and written back there."""
        return tuple(
            ((clean + dirty) * self.block_bytes, dirty * self.block_bytes)
            for clean, dirty in zip(self.clean_misses, self.dirty_misses, strict=True)
        )


@dataclass(frozen=True)
class CacheCounts:
    """Hits and misses of one step in the cache.

    Attributes:
        block_bytes: of a block of pool and cache.
        hits, clean_misses, dirty_misses: blocks.
        hit_bytes, clean_miss_bytes, dirty_miss_bytes: the same in bytes; a dirty miss also writes as many back.
    """

    block_bytes: int
    hits: int
    clean_misses: int
    dirty_misses: int
    hit_bytes: int
    clean_miss_bytes: int
    dirty_miss_bytes: int

    @classmethod
    def of(cls, pool: CachedPool) -> CacheCounts:
        """Return the sums over kernels."""
        blocks = tuple(sum(column) for column in (pool.hits, pool.clean_misses, pool.dirty_misses))
        return cls(pool.block_bytes, *blocks, *(number * pool.block_bytes for number in blocks))


def block_bytes_for(pool_bytes: int) -> int:
    """Return 4 KiB, doubled until the pool has at most `MOST_BLOCKS` blocks."""
    size = BLOCK_BYTES
    while pool_bytes > size * MOST_BLOCKS:
        size *= 2
    return size


def cached_pool(
    graph: Graph, offsets: Mapping[str, int], order: tuple[str, ...], pool_bytes: int, cache_bytes: int | None
) -> CachedPool:
    """Simulate two steps of `graph` and count the second: from then on, all are alike.

    Args:
        graph: the step, with the implementations that run.
        offsets: offset of every movable tensor in the pool, bytes.
        order: the tensors in the order of the plan's stays.
        pool_bytes: size of the pool.
        cache_bytes: size of the cache, rounded down to blocks; None is one that holds the whole pool.
    """
    size = block_bytes_for(pool_bytes)
    blocks = math.ceil(pool_bytes / size) if cache_bytes is None else cache_bytes // size
    cache = _Cache(blocks, size)
    passes = [tuple(_passes(graph, kernel, offsets)) for kernel in graph.kernels]
    for _ in range(2):
        counts = [sum(starmap(cache.touch, each), np.zeros(3, np.int64)).tolist() for each in passes]
    hits, clean, dirty = (tuple(column) for column in zip(*counts, strict=True)) if counts else ((), (), ())
    return CachedPool(tuple(offsets[name] for name in order), pool_bytes, size, blocks, hits, clean, dirty)


def amplified_bytes(graph: Graph, kernel: Kernel, fetched_bytes: int) -> int:
    """Return the bytes of fast memory that a cache reads and writes beside what the kernel itself does.

    Cascade Lake keeps a line's tag beside it. A read finds it with the data; a write has to read it first, hit or miss;
    a line that was fetched has to be written. So a read that hits is 1 access, one that misses 3 (4 if dirty), a write
    that hits 2, one that misses 4 (5 if dirty); `docs/emulation.md` has the sources. Here without the accesses of the
    kernel itself and those of slow memory, which are counted apart.
    """
    _, written = slow_traffic(graph, kernel, configuration(graph, kernel, set(graph.slots_of(kernel))))
    return fetched_bytes + sum(written)


def _passes(graph: Graph, kernel: Kernel, offsets: Mapping[str, int]) -> Iterator[tuple[int, int, int, bool]]:
    """Yield offset, size, touched bytes and whether it is written for each movable tensor of a kernel, by first slot.

    Of a table that is looked up in, a part is touched, evenly spread; of other tensors all.
    """
    for tensor in graph.slots_of(kernel):
        reads, writes = slow_traffic(graph, kernel, configuration(graph, kernel, {tensor}))
        yield offsets[tensor], graph.by_name[tensor].size_bytes, max(*reads, *writes, 0, 0), any(writes)


class _Cache:
    """The block that each set holds, as its round: block // number of sets, -1 where there is none yet."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self._sets = blocks
        self._block_bytes = block_bytes
        self._held = np.full(blocks, -1, np.int32)
        self._dirty = np.zeros(blocks, np.bool_)

    def touch(self, offset: int, size_bytes: int, touched_bytes: int, is_write: bool) -> npt.NDArray[np.int64]:
        """Return the hits, clean and dirty misses of a pass over one tensor."""
        first = offset // self._block_bytes
        count = -(-(offset + size_bytes) // self._block_bytes) - first
        touched = min(count, -(-touched_bytes // self._block_bytes)) if touched_bytes < size_bytes else count
        if self._sets == 0:
            return np.array([0, 0, touched] if is_write else [0, touched, 0], np.int64)
        spread = first + np.arange(touched) * count // touched if touched < count else None
        counts = np.zeros(3, np.int64)
        for turn in range(first // self._sets, -(-(first + count) // self._sets)):
            start = turn * self._sets
            begin, end = max(first, start), min(first + count, start + self._sets)
            inside = None if spread is None else spread[(begin <= spread) & (spread < end)] - start
            counts += self._touch(slice(begin - start, end - start) if inside is None else inside, turn, is_write)
        return counts

    def _touch(self, places: slice | npt.NDArray[np.int64], turn: int, is_write: bool) -> npt.NDArray[np.int64]:
        """Touch distinct sets, all with blocks of one round."""
        missed = self._held[places] != turn
        was_dirty = self._dirty[places]
        spoilt = missed & was_dirty
        self._held[places] = turn
        self._dirty[places] = True if is_write else was_dirty & ~missed
        misses, dirty = int(missed.sum()), int(spoilt.sum())
        return np.array([len(missed) - misses, misses - dirty, dirty], np.int64)


# A plain step in one pool whose pages an operating system places: in fast or in slow memory, each page for itself.

PlacedBy = Literal["simulated", "linux"]
"""Whether pages were placed by a simulation of the kernel's rules, or by the kernel itself."""


@dataclass(frozen=True, slots=True)
class PagedTraffic:
    """Bytes that one kernel of the step reads and writes in slow pages, and bytes of pages that move meanwhile.

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
        """Yield the traffic of each kernel of `graph`, the step with the implementations that run.

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
    """Bytes that one step reads and writes in slow pages, and bytes of pages that move meanwhile.

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
        """Return the sums over the kernels of `graph`, the step with the implementations that run."""
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
