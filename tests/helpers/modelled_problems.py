"""A modelled GPU small enough to follow by hand: each kernel takes 2 us, each copy of a map 4 us."""

from __future__ import annotations

from autotm.model.files import hash_of
from autotm.model.graph import Graph, OpClass, Tier, all_fast
from autotm.model.limit import Limit
from autotm.model.links import AsynchronousLinks, Contention, Link, Links
from autotm.model.machine import GpuManagedMemory
from autotm.model.profile import Profile, Timing
from autotm.solve.options import SolveOptions
from autotm.solve.problem import Problem

MAP_BYTES = 4096
KERNEL_US, COPY_US = 2.0, 4.0
FAULTS = GpuManagedMemory(source="made up", block_bytes=MAP_BYTES, faulted_bytes_per_s=MAP_BYTES / 8e-6)
"""A block takes 8 us to come in, twice as long as a copy."""


def problem_of(maps: int, graph: Graph) -> Problem:
    """The step, with device memory for so many of its feature maps."""
    ns = round(1e3 * KERNEL_US)
    timings = {
        (kernel.identity, kernel.implementation, all_fast(kernel)): Timing(ns, ns, ns, ns, repeats=0)
        for kernel in graph.kernels
    }
    limit = Limit(size_bytes=maps * MAP_BYTES)
    return Problem(graph, Profile(hash_of(graph), timings, {}), links(), limit, SolveOptions(fast_operands_only=True))


def links() -> Links:
    copy_ns = round(1e3 * COPY_US)
    to_fast, to_slow = (
        Link(tier, ((MAP_BYTES, copy_ns), (2 * MAP_BYTES, 2 * copy_ns))) for tier in (Tier.FAST, Tier.SLOW)
    )
    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    return Links(to_fast, to_slow, 1e12, 1.0, AsynchronousLinks(to_fast, to_slow, none, none, 0.0))
