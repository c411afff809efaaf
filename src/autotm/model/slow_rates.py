"""What a byte of slow memory costs a kernel, read off a profile: what misses of a cache are charged with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autotm.model.graph import Graph, OpClass
from autotm.model.profile import Profile
from autotm.model.tier import configuration
from autotm.model.traffic import slow_traffic


@dataclass(frozen=True, slots=True)
class SlowRates:
    """Microseconds that a byte read from, or written to, slow memory adds to a kernel."""

    read_us_per_byte: float
    write_us_per_byte: float

    def extra_us(self, read_bytes: int, written_bytes: int) -> float:
        """What these bytes add."""
        return read_bytes * self.read_us_per_byte + written_bytes * self.write_us_per_byte


def slow_rates(graph: Graph, profile: Profile) -> Mapping[OpClass, SlowRates]:
    """By op class: what tensors that alone were slow added to kernels, over their bytes.

    Only tensors that a kernel reads and does not write, or the reverse, tell. A class without such a one, and bytes
    that are timed nowhere, take the rate of all classes together; 0 where the profile has no slow tensor at all.
    """
    sums: dict[tuple[OpClass | None, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    seen = set()
    for kernel in graph.kernels:
        slots = tuple(graph.slots_of(kernel).values())
        if (kernel.identity, slots) in seen:
            continue
        seen.add((kernel.identity, slots))
        for tensor in graph.slots_of(kernel):
            config = configuration(graph, kernel, {tensor})
            reads, writes = (sum(sizes) for sizes in slow_traffic(graph, kernel, config))
            if (reads > 0) == (writes > 0) or profile.timing(kernel, config) is None:
                continue
            for which in (kernel.op_class, None):
                sums[which, writes > 0][0] += profile.extra_us(graph, kernel, tensor)
                sums[which, writes > 0][1] += reads + writes

    def rate(op_class: OpClass, *, written: bool) -> float:
        extra_us, size_bytes = sums.get((op_class, written)) or sums.get((None, written)) or (0.0, 1.0)
        return extra_us / size_bytes

    return {each: SlowRates(rate(each, written=False), rate(each, written=True)) for each in OpClass}
