"""Recomputation by segments (Chen et al., arXiv:1604.06174): what lies between two checkpoints is computed again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotm.model.measurement import Profile
from autotm.model.plan import called, repeats
from autotm.model.step import Graph, Kernel, Role, storage_of
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, fastest, last_forward_kernel, simulated


@dataclass(frozen=True)
class Segments:
    """A step whose forward pass runs in segments.

    Attributes:
        count: of segments.
        calls: kernels in the order in which they are called; empty where none runs again.
        step: as it is called.
    """

    count: int
    calls: tuple[int, ...]
    step: Graph

    @property
    def most_bytes(self) -> int:
        """The most that is in memory at once, without holes between."""
        return self.step.peak_live_bytes

    def repeated_us(self, profile: Profile) -> float:
        """What kernels take that run again."""
        return sum(profile.base_us(self.step.kernels[number]) for number in repeats(self.calls))


def segmentations(graph: Graph) -> Iterator[Segments]:
    """The step with its forward pass in 2 to 2 sqrt(kernels) segments of as many kernels each.

    What crosses from one segment to the next is kept; inside all but the last, tensors are dropped. When the backward
    pass first needs something that was dropped, the kernels of its segment that lead to such tensors run again, once. A
    kernel that writes an argument cannot, nor can one that read an argument which was overwritten since: a counter of
    random draws, a running average. What these compute is kept.
    """
    forward = last_forward_kernel(graph) + 1
    for count in range(2, max(3, 2 * math.isqrt(forward) + 1)):
        calls = _calls(graph, forward, count)
        yield Segments(count, calls, called(graph, calls))


def recompute_segments(problem: Problem) -> Simulated:
    """Of `segmentations` the fastest that fits the limit, without copies; where nothing fits, what needs least memory.

    Memory is counted in bytes, without fragments.
    """
    graph = fastest(problem)
    tried = list(segmentations(graph))
    fitting = [one for one in tried if one.most_bytes <= problem.limit_bytes]
    chosen = fastest_of(fitting, problem.profile) if fitting else leanest_of(tried)
    engines = Engines()
    for kernel in chosen.step.kernels:
        engines.compute(kernel.name, problem.profile.base_us(kernel))
    repeated_us, remark = chosen.repeated_us(problem.profile), f"{chosen.count} segments"
    return simulated(problem, graph, engines, chosen.most_bytes, repeated_us=repeated_us, remark=remark)


def fastest_of(segments: Sequence[Segments], profile: Profile) -> Segments:
    """What repeats least; of equals, what has the fewest segments."""
    return min(segments, key=lambda one: (one.repeated_us(profile), one.count))


def leanest_of(segments: Sequence[Segments]) -> Segments:
    """What needs least memory; of equals, what has the fewest segments."""
    return min(segments, key=lambda one: (one.most_bytes, one.count))


def _calls(graph: Graph, forward: int, count: int) -> tuple[int, ...]:
    """Kernels in the order of their calls; empty where none runs again."""
    overwritten, once = _Overwritten(graph), _writing_arguments(graph)
    while True:
        calls = tuple(_Sequence(graph, forward, count, once).calls())
        again = repeats(calls)
        # What ran for the first time before a repeat are the kernels before the one that needs it.
        spoilt = {calls[number] for number in again if overwritten.between(calls[number], max(calls[:number]) + 1)}
        if not spoilt:
            return calls if again else ()
        once |= spoilt


def _writing_arguments(graph: Graph) -> set[int]:
    kernels = enumerate(graph.kernels)
    return {index for index, kernel in kernels if any(not graph.by_name[name].role.is_movable for name in _out(kernel))}


def _out(kernel: Kernel) -> list[str]:
    return [operand.tensor for operand in kernel.outputs]


class _Overwritten:
    """Which kernels write over the arguments that others read."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._writers: dict[str, list[int]] = defaultdict(list)
        for index, kernel in enumerate(graph.kernels):
            for name in _out(kernel):
                if not graph.by_name[name].role.is_movable:
                    self._writers[storage_of(graph, name)].append(index)

    def between(self, kernel: int, before: int) -> bool:
        """Whether an argument that the kernel reads is overwritten after it, and before kernel `before` runs."""
        storages = (storage_of(self._graph, operand.tensor) for operand in self._graph.kernels[kernel].inputs)
        return any(kernel < writer < before for storage in storages for writer in self._writers.get(storage, ()))


class _Sequence:
    """The calls of a step whose forward pass of `forward` kernels has `count` segments; kernels `once` never repeat."""

    def __init__(self, graph: Graph, forward: int, count: int, once: set[int]) -> None:
        self._graph, self._forward, self._count, self._once = graph, forward, count, once
        self._dropped = {name for name in graph.by_name if self._is_dropped(name)}
        self._missing: dict[int, set[str]] = defaultdict(set)
        for name in self._dropped:
            self._missing[self._segment(self._producer(name))].add(name)

    def calls(self) -> Iterator[int]:
        """Kernels by index."""
        for index in range(len(self._graph.kernels)):
            if index >= self._forward:
                lost = [name for name in self._read(index) if name in self._dropped]
                for segment in dict.fromkeys(self._segment(self._producer(name)) for name in lost):
                    yield from self._again(segment)
            yield index

    def _segment(self, kernel: int) -> int:
        return kernel * self._count // self._forward

    def _producer(self, name: str) -> int:
        producer = self._graph.by_name[name].producer
        assert producer is not None, "arguments are not dropped"
        return producer

    def _is_dropped(self, name: str) -> bool:
        tensor = self._graph.by_name[name]
        if tensor.role is not Role.INTERMEDIATE or tensor.producer in self._once:
            return False
        if not tensor.users[0] < self._forward <= tensor.users[-1]:
            return False
        own = self._segment(tensor.users[0])
        stays_inside = all(user >= self._forward or self._segment(user) == own for user in tensor.readers)
        return stays_inside and own < self._count - 1

    def _again(self, segment: int) -> list[int]:
        """The kernels of a segment that lead to what was dropped there, unless they ran again before."""
        wanted, found = list(self._missing.pop(segment, ())), set[int]()
        while wanted:
            producer = self._producer(wanted.pop())
            if producer not in found:
                found.add(producer)
                wanted += [name for name in self._read(producer) if self._is_inside(name, segment)]
        return sorted(found)

    def _is_inside(self, name: str, segment: int) -> bool:
        """Whether a tensor that a segment reads was made in it, and is gone after it."""
        tensor = self._graph.by_name[name]
        if tensor.role is not Role.INTERMEDIATE or self._segment(self._producer(name)) != segment:
            return False
        if tensor.producer in self._once:
            return False
        return name in self._dropped or all(
            user < self._forward and self._segment(user) == segment for user in tensor.readers
        )

    def _read(self, index: int) -> list[str]:
        return list(dict.fromkeys(operand.tensor for operand in self._graph.kernels[index].inputs))
