"""Packing by omnimalloc: branch and bound (supermalloc) for the large blocks, first fit for the others.

The only place that knows the library. Its allocator class minimises for as long as it is given; here a bound is known
that suffices, and a search that is cut off by nodes gives the same offsets on every machine. So its search is called
directly, as its own experiments do, once for each order of the blocks.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from autotm.layout.blocks import Blocks, Ints
from autotm.model.step import ALIGNMENT_BYTES

if "matplotlib" in sys.modules:
    from omnimalloc import Allocation
else:
    # Its pictures, which nobody asks for here, would import matplotlib, where there is one: 0.6 s of every job.
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        from omnimalloc import Allocation
    finally:
        del sys.modules["matplotlib"]
from omnimalloc._cpp import Partition, try_solve_many
from omnimalloc.allocators.greedy import GreedyBySizeAllocator

_ORDERS = ("TWA", "WAT", "OTW", "UWC", "TAW", "CTA", "ALZ")
"""Orders in which blocks are placed, by the library's letters: W duration, A area, T most live bytes during its life,
L start, U end, Z size, O how many blocks it meets, C how many kernels. The first ones succeeded most often."""
_SHARES = (0.02, 0.005, 0.001)
"""Blocks of at least this share of the bound are large; few are quick to place, many leave less to chance."""
_NODES, _NODES_PER_BLOCK = 3000, 3
_ORDER_S = 10.0
"""A guard only: nodes end the search long before, on a loaded machine too, or offsets would depend on the clock."""
_FEW, _FIRST = 2000, 2
"""Where there are no more blocks than this, all are first tried at once, in the first orders."""
_MOST_LARGE = 4000
"""The search keeps a state for each block that it has placed: so many take some 200 MB."""


def packings(blocks: Blocks, bound_bytes: int, end_s: float = math.inf) -> Iterator[Ints]:
    """Offsets with at least the large blocks within `bound_bytes`; others may end above it.

    Nothing is searched once `time.perf_counter` has reached `end_s`.
    """
    few = len(blocks) <= _FEW
    yield from _all_within(blocks, bound_bytes, _ORDERS[:_FIRST] if few else (), end_s)
    tried = -1
    for share in _SHARES:
        large = np.flatnonzero(blocks.sizes >= share * bound_bytes)
        if not tried < len(large) <= _MOST_LARGE:
            continue
        tried = len(large)
        for order in _ORDERS:
            found = _search(blocks[large], bound_bytes, order, end_s)
            if found is not None:
                yield _filled(blocks, large, found)
    yield from _all_within(blocks, bound_bytes, _ORDERS[_FIRST if few else 0 :], end_s)


def _all_within(blocks: Blocks, bound_bytes: int, orders: Sequence[str], end_s: float) -> Iterator[Ints]:
    if len(blocks) <= _MOST_LARGE:
        found = (_search(blocks, bound_bytes, order, end_s) for order in orders)
        yield from (offsets for offsets in found if offsets is not None)


def _search(blocks: Blocks, bound_bytes: int, order: str, end_s: float) -> Ints | None:
    left_s = end_s - time.perf_counter()
    if left_s <= 0:
        return None
    bound = bound_bytes // ALIGNMENT_BYTES
    partition = Partition.from_allocations(_allocations(blocks.by_events))
    if partition.lower_bound > bound:
        return None
    found = try_solve_many(
        [partition.reorder(order).with_bound(bound + 1)],
        bound + 1,
        _NODES + _NODES_PER_BLOCK * len(blocks),
        canonical=True,
        dominance=True,
        floor_inference=True,
        monotonic_floor=True,
        decompose=True,
        timeout=min(_ORDER_S, left_s),
        num_threads=1,
    )
    return None if found is None else _offsets(found.allocations)


def _filled(blocks: Blocks, large: Ints, offsets: Ints) -> Ints:
    """The large blocks where they are, the others first-fit around them, the largest first."""
    allocations = _allocations(blocks)
    for block, offset in zip(large.tolist(), offsets.tolist(), strict=True):
        allocations[block] = allocations[block].with_offset(offset // ALIGNMENT_BYTES)
    return _offsets(list(GreedyBySizeAllocator().allocate(tuple(allocations))))


def _allocations(blocks: Blocks) -> list[Allocation]:
    sizes = (blocks.sizes // ALIGNMENT_BYTES).tolist()
    spans = zip(sizes, blocks.starts.tolist(), blocks.ends.tolist(), strict=True)
    return [Allocation(number, size, start, end) for number, (size, start, end) in enumerate(spans)]


def _offsets(placed: list[Allocation]) -> Ints:
    offsets = np.zeros(len(placed), np.int64)
    for allocation in placed:
        assert isinstance(allocation.id, int)
        assert allocation.offset is not None
        offsets[allocation.id] = allocation.offset * ALIGNMENT_BYTES
    return offsets
