"""Modelled kernel times of a large server with Optane memory, for graphs that no computer here could run.

Nothing in here was measured on the graph at hand. A kernel takes the longer of computing at 2.3 TFLOP/s and touching
its operands at 100 GB/s, plus 3 us. An operand in slow memory adds nanoseconds per byte by direction and kind of
kernel, as recorded for one socket of 24 cores (Hildebrand et al., ASPLOS 2020): convolutions hide most of their reads.
Copies run at 29 GB/s to fast and 12 GB/s to slow memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

from autotm.model.files import hash_of
from autotm.model.graph import Configuration, Graph, Kernel, OpClass, Tier, all_fast, configuration, slow_traffic
from autotm.model.links import AsynchronousLinks, Contention, Link, Links
from autotm.model.profile import Profile, Timing

_FLOP_PER_NS = 2.3e3
_BYTES_PER_NS = 100.0
_CALL_NS = 3_000
_CONTRACTIONS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}
_CONTRACTION_NS_PER_BYTE = (0.006, 0.135)
_OTHER_NS_PER_BYTE = (0.025, 0.19)
"""(read, write) of a slow operand."""

_LEAST_BYTES = 1_000_000
"""Operands smaller than this are never in the tables: all their configurations would double them for nothing."""
_MOST_TENSORS = 8
"""A kernel with more large operands than this has no table: 2^9 configurations would be too many to measure."""


def modelled_links() -> Links:
    """Constant rates, 2 us for anything up to 4 KiB; copies beside kernels at AutoTM's rates, without contention."""

    def link(destination: Tier, bytes_per_ns: float) -> Link:
        return Link(destination, tuple((size, round(size / bytes_per_ns) + 2000) for size in (4096, 10**6, 10**9)))

    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    asynchronous = AsynchronousLinks(link(Tier.FAST, 2.0), link(Tier.SLOW, 2.5), none, none, call_us=0.0)
    return Links(link(Tier.FAST, 29.0), link(Tier.SLOW, 12.0), 2.3e12, 1.0, asynchronous)


def modelled_profile(graph: Graph, *, tables: bool = False, noise: float = 0.0, seed: int = 0) -> Profile:
    """Return the times of every distinct kernel: all fast, and each movable tensor slow.

    With `tables` also every configuration of the large operands, in which slow reads run beneath slow writes: together
    they cost the longer of the two, so that no sum of single costs predicts it. `noise` is the deviation of the
    logarithm of a factor on every single cost; kernels that should draw different ones need different identities.
    """
    draw = random.Random(seed)  # noqa: S311 - noise, not a secret
    timings: dict[tuple[str, str, Configuration], Timing] = {}
    for kernel in graph.kernels:
        if (kernel.identity, kernel.implementation, all_fast(kernel)) in timings:
            continue
        base_ns = _base_ns(graph, kernel)
        costs = {name: cost.times(draw.lognormvariate(0, noise)) for name, cost in _costs(graph, kernel).items()}
        for slow in _slow_sets(graph, list(costs), tables):
            read_ns = sum(costs[name].read_ns for name in slow)
            write_ns = sum(costs[name].write_ns for name in slow)
            extra_ns = max(read_ns, write_ns) if tables else read_ns + write_ns
            key = kernel.identity, kernel.implementation, configuration(graph, kernel, slow)
            timings[key] = _timing(base_ns + extra_ns)
    return Profile(hash_of(graph), timings, {"modelled": __doc__, "noise": noise, "seed": seed})


@dataclass(frozen=True)
class _Cost:
    """What one tensor in slow memory adds to one kernel."""

    read_ns: float
    write_ns: float

    def times(self, factor: float) -> _Cost:
        return _Cost(self.read_ns * factor, self.write_ns * factor)


def _base_ns(graph: Graph, kernel: Kernel) -> float:
    touched = sum(graph.by_name[name].size_bytes for name in {operand.tensor for operand in kernel.operands})
    return max(kernel.flops / _FLOP_PER_NS, touched / _BYTES_PER_NS) + _CALL_NS


def _costs(graph: Graph, kernel: Kernel) -> dict[str, _Cost]:
    """Costs of reading and writing each movable tensor of the kernel in slow memory, by tensor."""
    read, write = _CONTRACTION_NS_PER_BYTE if kernel.op_class in _CONTRACTIONS else _OTHER_NS_PER_BYTE
    costs = {}
    for name in graph.slots_of(kernel):
        reads, writes = slow_traffic(graph, kernel, configuration(graph, kernel, {name}))
        costs[name] = _Cost(read * sum(reads), write * sum(writes))
    return costs


def _slow_sets(graph: Graph, tensors: list[str], tables: bool) -> Iterator[tuple[str, ...]]:
    yield ()
    yield from ((name,) for name in tensors)
    large = [name for name in tensors if graph.by_name[name].size_bytes >= _LEAST_BYTES]
    if tables and len(large) <= _MOST_TENSORS:
        yield from chain.from_iterable(combinations(large, count) for count in range(2, len(large) + 1))


def _timing(ns: float) -> Timing:
    whole = round(ns)
    return Timing(whole, whole, whole, whole, repeats=0)
