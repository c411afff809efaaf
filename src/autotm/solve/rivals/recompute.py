"""Recomputation by segments (Chen et al., arXiv:1604.06174): what lies between two checkpoints is computed again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from autotm.model.step import Graph, Role
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, fastest, last_forward_kernel, simulated

_Version = tuple[str, bool]
"""A tensor, and whether it was computed again."""


def recompute_segments(problem: Problem) -> Simulated:
    """The forward pass in segments of as many kernels each; inside all but the last, tensors are dropped.

    What crosses from one segment to the next is kept. When the backward pass first needs something that was dropped,
    the kernels of its segment that lead to such tensors run again, once. Of 2 to 2 sqrt(kernels) segments those are
    taken that are fastest among what fits the limit; where nothing fits, those that need least memory.
    """
    graph = fastest(problem)
    forward = last_forward_kernel(graph) + 1
    counts = range(2, max(3, 2 * math.isqrt(forward) + 1))
    tried = [(count, _Sequence(graph, forward, count)) for count in counts]
    times = {count: sum(problem.profile.base_us(graph.kernels[one]) for one in each.repeated) for count, each in tried}
    fitting = [(times[count], count, each) for count, each in tried if each.most_bytes <= problem.limit_bytes]
    leanest = [(each.most_bytes, count, each) for count, each in tried]
    _, count, chosen = min(fitting or leanest, key=lambda one: one[:2])
    engines = Engines()
    for call in chosen.calls:
        kernel = graph.kernels[call.kernel]
        engines.compute(f"{kernel.name} again" if call.again else kernel.name, problem.profile.base_us(kernel))
    return simulated(problem, graph, engines, chosen.most_bytes, repeated_us=times[count], remark=f"{count} segments")


@dataclass(frozen=True, slots=True)
class _Call:
    kernel: int
    again: bool
    reads: tuple[_Version, ...]
    writes: tuple[_Version, ...]


class _Sequence:
    """The calls of a step whose forward pass of `forward` kernels has `count` segments."""

    def __init__(self, graph: Graph, forward: int, count: int) -> None:
        self._graph, self._forward, self._count = graph, forward, count
        self._dropped = {name for name in graph.by_name if self._is_dropped(name)}
        self._missing: dict[int, set[str]] = defaultdict(set)
        for name in self._dropped:
            self._missing[self._segment(self._producer(name))].add(name)
        self.repeated: list[int] = []
        self.calls = list(self._all_calls())

    def _segment(self, kernel: int) -> int:
        return kernel * self._count // self._forward

    def _producer(self, name: str) -> int:
        producer = self._graph.by_name[name].producer
        assert producer is not None, "arguments are not dropped"
        return producer

    def _is_dropped(self, name: str) -> bool:
        tensor = self._graph.by_name[name]
        if tensor.role is not Role.INTERMEDIATE or not tensor.users[0] < self._forward <= tensor.users[-1]:
            return False
        own = self._segment(tensor.users[0])
        stays_inside = all(user >= self._forward or self._segment(user) == own for user in tensor.readers)
        return stays_inside and own < self._count - 1

    def _all_calls(self) -> Iterable[_Call]:
        for index in range(len(self._graph.kernels)):
            if index >= self._forward:
                lost = [name for name in self._read(index) if name in self._dropped]
                for segment in dict.fromkeys(self._segment(self._producer(name)) for name in lost):
                    yield from self._again(segment)
            yield self._call(index, again=False)

    def _again(self, segment: int) -> Iterable[_Call]:
        """The kernels of a segment that lead to what was dropped there, unless they ran again before."""
        wanted, found = list(self._missing.pop(segment, ())), set[int]()
        while wanted:
            producer = self._producer(wanted.pop())
            if producer not in found:
                found.add(producer)
                wanted += [name for name in self._read(producer) if self._is_inside(name, segment)]
        self.repeated += sorted(found)
        for index in sorted(found):
            yield self._call(index, again=True)

    def _is_inside(self, name: str, segment: int) -> bool:
        """Whether a tensor that a segment reads was made in it, and is gone after it."""
        tensor = self._graph.by_name[name]
        if tensor.role is not Role.INTERMEDIATE or self._segment(self._producer(name)) != segment:
            return False
        return name in self._dropped or all(
            user < self._forward and self._segment(user) == segment for user in tensor.readers
        )

    def _read(self, index: int) -> list[str]:
        inputs = dict.fromkeys(operand.tensor for operand in self._graph.kernels[index].inputs)
        return [name for name in inputs if self._graph.by_name[name].is_movable]

    def _call(self, index: int, *, again: bool) -> _Call:
        kernel, backward = self._graph.kernels[index], index >= self._forward
        segment = self._segment(index)
        reads = tuple(
            (name, (backward and name in self._dropped) or (again and self._is_inside(name, segment)))
            for name in self._read(index)
        )
        written = [operand.tensor for operand in kernel.outputs + kernel.workspaces]
        movable = [name for name in written if self._graph.by_name[name].is_movable]
        return _Call(index, again, reads, tuple((name, again) for name in movable))

    @property
    def most_bytes(self) -> int:
        """The most that is in memory at once: each version from the call that writes it to the last that reads it."""
        first: dict[_Version, int] = {}
        last: dict[_Version, int] = {}
        for place, call in enumerate(self.calls):
            for version in call.writes:
                first[version] = last[version] = place
            for version in call.reads:
                first.setdefault(version, 0)
                last[version] = place
        change = [0] * (len(self.calls) + 1)
        for version, start in first.items():
            size = self._graph.by_name[version[0]].allocated_bytes
            change[start] += size
            change[last[version] + 1] -= size
        return max(accumulate(change), default=0)
