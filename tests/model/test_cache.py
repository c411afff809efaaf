"""The cache of memory mode against a simulator of one block at a time."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from random_graphs import StepBuilder, random_case

from autotm.model.cache import BLOCK_BYTES, CacheCounts, amplified_bytes, block_bytes_for, cached_pool
from autotm.model.graph import Graph

KIB = 256
"""Elements of 4 bytes in 1 KiB."""


def simulated(graph: Graph, offsets: dict[str, int], sets: int) -> list[tuple[int, int, int]]:
    """Hits, clean and dirty misses of each kernel in the second step, block by block."""
    held: dict[int, tuple[int, bool]] = {}
    for _ in range(2):
        kernel_counts = []
        for kernel in graph.kernels:
            counts = [0, 0, 0]
            for tensor in dict.fromkeys(operand.tensor for operand in kernel.operands):
                if not graph.by_name[tensor].is_movable:
                    continue
                written = tensor in {operand.tensor for operand in kernel.outputs + kernel.workspaces}
                last = offsets[tensor] + graph.by_name[tensor].size_bytes - 1
                for block in range(offsets[tensor] // BLOCK_BYTES, last // BLOCK_BYTES + 1):
                    old, dirty = held.get(block % sets, (-1, False))
                    if old == block:
                        counts[0] += 1
                        held[block % sets] = (block, dirty or written)
                    else:
                        counts[2 if dirty else 1] += 1
                        held[block % sets] = (block, written)
            kernel_counts.append((counts[0], counts[1], counts[2]))
    return kernel_counts


def scattered(graph: Graph, seed: int) -> tuple[dict[str, int], int]:
    """Addresses that no allocator would give: tensors may share bytes, which a cache does not mind."""
    draw = random.Random(seed)
    pool_bytes = 4 * sum(tensor.allocated_bytes for tensor in graph.movable)
    room = {tensor.name: pool_bytes - tensor.allocated_bytes for tensor in graph.movable}
    return {name: draw.randrange(free // 64 + 1) * 64 for name, free in room.items()}, pool_bytes


@given(seed=st.integers(0, 2**31 - 1), sets=st.sampled_from([1, 2, 7, 64, 1000, None]))
def test_counts_are_those_of_single_blocks(seed: int, sets: int | None) -> None:
    """Also of a cache that holds the whole pool, which misses nothing."""
    graph = random_case(seed, kernels=8).graph.computed_by(())  # Tensors become so large that they have several blocks.
    tensors = tuple(replace(tensor, size_bytes=tensor.size_bytes * 1000) for tensor in graph.tensors)
    graph = replace(graph, tensors=tensors)
    offsets, pool_bytes = scattered(graph, seed)
    cache_bytes = None if sets is None else sets * BLOCK_BYTES
    pool = cached_pool(graph, offsets, tuple(offsets), pool_bytes, cache_bytes)
    assert pool.block_bytes == BLOCK_BYTES
    counts = list(zip(pool.hits, pool.clean_misses, pool.dirty_misses, strict=True))
    assert counts == simulated(graph, offsets, sets or -(-pool_bytes // BLOCK_BYTES))
    assert sum(map(sum, counts)) > 0
    if sets is None:
        assert set(pool.traffic_bytes) == {(0, 0)}


def three_tensors() -> Graph:
    builder = StepBuilder()
    builder.argument("data", KIB)
    builder.kernel(["data"], {"a": 8 * KIB}, {})
    builder.kernel(["a"], {"b": 8 * KIB}, {})
    builder.kernel(["b", "a"], {"c": 8 * KIB}, {})
    return builder.graph()


def test_a_cache_reads_a_tag_before_it_writes_and_fills_what_it_fetched() -> None:
    graph = three_tensors()
    last = graph.kernels[2]
    written, line = 8 * KIB * 4, 64
    assert amplified_bytes(graph, last, 0) == written, "reads that hit cost the cache nothing, writes that hit a tag"
    assert amplified_bytes(graph, last, line) == written + line


def test_two_tensors_of_one_place_displace_each_other() -> None:
    offsets = {"a": 0, "b": 16 * 1024, "c": 32 * 1024}
    pool = cached_pool(three_tensors(), offsets, ("a", "b", "c"), 40 * 1024, 16 * 1024)
    assert pool.cache_blocks == 4
    assert (pool.hits, pool.clean_misses, pool.dirty_misses) == ((0, 2, 2), (0, 0, 2), (2, 2, 2)), (
        "a displaces the last step's c; b dirty a; then a comes back over dirty b, and c displaces that clean copy"
    )
    assert pool.traffic_bytes == ((8192, 8192), (8192, 8192), (16384, 8192))
    counts = CacheCounts.of(pool)
    assert (counts.hits, counts.clean_misses, counts.dirty_misses) == (4, 2, 6)
    assert (counts.hit_bytes, counts.clean_miss_bytes, counts.dirty_miss_bytes) == (16384, 8192, 24576)


def test_without_a_cache_every_pass_is_a_miss() -> None:
    pool = cached_pool(three_tensors(), {"a": 0, "b": 8192, "c": 16384}, ("a", "b", "c"), 24 * 1024, 100)
    assert pool.cache_blocks == 0
    assert (pool.hits, pool.clean_misses, pool.dirty_misses) == ((0, 0, 0), (0, 2, 4), (2, 2, 2))


def test_blocks_grow_with_the_pool() -> None:
    assert block_bytes_for(0) == block_bytes_for(64 << 30) == 4096
    assert block_bytes_for((64 << 30) + 1) == 8192
    assert block_bytes_for(650 * 10**9) == 65536
