"""What a byte of slow memory costs a kernel, read off a profile: what misses of a cache are charged with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autotm.model.measurement.profile import Profile
from autotm.model.step import Graph, OpClass, all_fast, configuration, slow_traffic


@dataclass(frozen=True, slots=True)
class SlowRates:
    """Microseconds that a byte read from, or written to, slow memory adds to a kernel."""

    read_us_per_byte: float
    write_us_per_byte: float

    def extra_us(self, read_bytes: int, written_bytes: int) -> float:
        """What these bytes add."""
        return read_bytes * self.read_us_per_byte + written_bytes * self.write_us_per_byte


def slow_rates(graph: Graph, profile: Profile) -> Mapping[OpClass, SlowRates]:
    """By op class: what tensors that alone were slow added to kernels, per byte, at the median byte.

    A median, and of differences that may be negative, because small extras of long kernels drown in noise. Only tensors
    that a kernel reads and does not write, or the reverse, tell. A class without such a one takes the rate of all
    classes together; 0 where the profile has no slow tensor at all.
    """
    found: dict[tuple[OpClass | None, bool], list[tuple[float, int]]] = defaultdict(list)
    for op_class, is_write, extra_us, size_bytes in _extras(graph, profile):
        for which in (op_class, None):
            found[which, is_write].append((extra_us / size_bytes, size_bytes))

    def rate(op_class: OpClass, *, is_write: bool) -> float:
        return max(0.0, _median(found.get((op_class, is_write)) or found.get((None, is_write)) or [(0.0, 1)]))

    return {each: SlowRates(rate(each, is_write=False), rate(each, is_write=True)) for each in OpClass}


def _extras(graph: Graph, profile: Profile) -> Iterator[tuple[OpClass, bool, float, int]]:
    """Class, whether it was written, added microseconds and bytes of each tensor that alone was slow."""
    seen = set()
    for kernel in graph.kernels:
        slots = graph.slots_of(kernel)
        if profile.timing(kernel, all_fast(kernel)) is None or (kernel.identity, tuple(slots.values())) in seen:
            continue
        seen.add((kernel.identity, tuple(slots.values())))
        for tensor in slots:
            config = configuration(graph, kernel, {tensor})
            read_bytes, written_bytes = (sum(sizes) for sizes in slow_traffic(graph, kernel, config))
            if profile.timing(kernel, config) is not None and (read_bytes > 0) != (written_bytes > 0):
                extra_us = profile.extra_us(graph, kernel, tensor)
                yield kernel.op_class, written_bytes > 0, extra_us, read_bytes + written_bytes


def _median(rates: list[tuple[float, int]]) -> float:
    """The rate of the median byte of (rate, bytes)."""
    ascending = sorted(rates)
    bytes_so_far = np.cumsum([size_bytes for _, size_bytes in ascending])
    return ascending[int(np.searchsorted(bytes_so_far, bytes_so_far[-1] / 2))][0]
