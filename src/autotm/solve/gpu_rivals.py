"""Other methods for steps beyond a GPU's memory, simulated on its three engines."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from autotm.model.errors import unknown_name
from autotm.model.graph import ChosenGraph, Graph, Kernel, Role, Tensor, Tier
from autotm.model.limit import Counts, counting, fixed_bytes, storage_of
from autotm.model.plan import called, repeats
from autotm.model.profile import Profile
from autotm.model.timeline import Engine
from autotm.solve.gpu_simulation import Engines, Simulated, copy, copy_and_wait, fastest, last_forward_kernel, simulated
from autotm.solve.paging import PageMap, first_fit
from autotm.solve.problem import Problem

# Paging of whole tensors: what was used least recently leaves the device when there is no room.


@dataclass(frozen=True)
class Paging:
    """What paging does before one kernel.

    Attributes:
        kernel: its index.
        gone: tensors that leave the device.
        out: those of them that are copied to the host; the others are there already.
        brought: tensors that are copied in.
        used_bytes: on the device during the kernel.
    """

    kernel: int
    gone: list[str] = field(default_factory=list)
    out: list[str] = field(default_factory=list)
    brought: list[str] = field(default_factory=list)
    used_bytes: int = 0


def paging(graph: Graph, limit_bytes: int) -> Iterator[Paging]:
    """Demand paging, kernel by kernel: nothing is known of the kernels to come.

    Before a kernel its operands are brought in, and room for them and for its results is made. A tensor is written
    once, so it is *dirty* until its first copy to the host, and dropped without one afterwards; what nobody will read
    is freed. Room is counted in bytes, without fragments. What every step finds on the device, where the limit counts
    it, stays there.
    """
    pager = _Pager(graph, limit_bytes)
    for index, kernel in enumerate(graph.kernels):
        operands = graph.slots_of(kernel)
        yield pager.bring(index, operands)
        pager.free([name for name in operands if graph.by_name[name].live.stop == index + 1])


def page_tensors(problem: Problem) -> Simulated:
    """`paging` on three engines: all copies are waited for."""
    graph, engines, most_bytes = fastest(problem), Engines(), 0
    for done, kernel in zip(paging(graph, problem.limit_bytes), graph.kernels, strict=True):
        for engine, names in ((Engine.OUT, done.out), (Engine.IN, done.brought)):
            for name in names:
                copy_and_wait(engines, problem, engine, name, graph.by_name[name].size_bytes)
        engines.compute(kernel.name, problem.profile.base_us(kernel))
        most_bytes = max(most_bytes, done.used_bytes)
    return simulated(problem, graph, engines, most_bytes)


class _Pager:
    """What is on the device, least recently used first."""

    def __init__(self, graph: Graph, limit_bytes: int) -> None:
        self._graph, self._limit_bytes = graph, limit_bytes
        self._held = {tensor.name for tensor in graph.tensors if tensor.held}
        self._resident = OrderedDict((name, graph.by_name[name].allocated_bytes) for name in sorted(self._held))
        self._on_host: set[str] = set()
        self._used_bytes = sum(self._resident.values())

    def bring(self, index: int, operands: Collection[str]) -> Paging:
        """Make room for operands, and copy in those that are on the host only."""
        gone: list[str] = []
        out: list[str] = []
        missing = [name for name in operands if name not in self._resident]
        for name in operands:
            if name in self._resident:
                self._resident.move_to_end(name)
        needed_bytes = sum(self._graph.by_name[name].allocated_bytes for name in missing)
        for name in [name for name in self._resident if name not in operands and name not in self._held]:
            if self._used_bytes + needed_bytes <= self._limit_bytes:
                break
            self.free([name])
            gone.append(name)
            if name not in self._on_host:
                out.append(name)
        self._on_host.update(out)
        for name in missing:
            self._resident[name] = self._graph.by_name[name].allocated_bytes
            self._used_bytes += self._resident[name]
        return Paging(index, gone, out, [name for name in missing if name in self._on_host], self._used_bytes)

    def free(self, names: Collection[str]) -> None:
        """Give back the memory of tensors, without a copy; what is held for the next step stays."""
        self._used_bytes -= sum(self._resident.pop(name) for name in names if name not in self._held)


# Memory that the GPU's driver moves by page faults (cudaMallocManaged), as a model: the baseline of figure 12.

_STEPS = 2
"""The first finds nothing on the device; what the last one found, all after it find."""


@dataclass(frozen=True, slots=True)
class ManagedPaging:
    """How the driver moves memory.

    Attributes:
        block_bytes: that it moves to the host as a whole, and brings back whole.
        faulted_bytes_per_s: at which a kernel that waits for faults gets them.
    """

    block_bytes: int
    faulted_bytes_per_s: float


def run_managed(problem: Problem, managed: ManagedPaging) -> Simulated:
    """The plain step in one managed pool, with the device memory that a plan has, that of the arguments included.

    Blocks are brought in when a kernel touches them, at the rate of faults; for room the block used least recently goes
    to the host, at the rate of a copy, whether or not anybody will read it: the driver knows no tensors. A block that
    was never on the host is not brought in. All of it is waited for. Addresses are those of a plain framework.
    """
    graph = counting(fastest(problem), Counts.ALL)
    offsets, pool_bytes = first_fit(graph)
    pages = PageMap.of(graph, offsets, pool_bytes, managed.block_bytes)
    device_bytes = problem.limit_bytes + fixed_bytes(problem.graph)
    blocks = _Blocks(pages.count, max(1, device_bytes // managed.block_bytes))
    for touch in pages.before:
        blocks.use(np.arange(pages.count)[touch.pages])
    engines = Engines()
    for step in range(_STEPS):
        if step:
            engines = Engines()
        for kernel, touches in zip(graph.kernels, pages.kernels, strict=True):
            faulted = evicted = 0
            for touch in touches:
                brought, sent = blocks.use(np.arange(pages.count)[touch.pages])
                faulted, evicted = faulted + brought, evicted + sent
            for engine, count in ((Engine.OUT, evicted), (Engine.IN, faulted)):
                size = count * managed.block_bytes
                rate_us = 1e6 * size / managed.faulted_bytes_per_s
                moved_us = problem.links.copy_us(Tier.SLOW, size) if engine is Engine.OUT else rate_us
                if size:
                    engines.wait(engines.ask(engine, kernel.name, size, moved_us))
            engines.compute(kernel.name, problem.profile.base_us(kernel))
    most_bytes = min(pool_bytes, device_bytes)
    text = "a model of page faults; nothing was run in managed memory"
    return simulated(problem, graph, engines, min(most_bytes, problem.limit_bytes), remark=text)


class _Blocks:
    """Which blocks are on the device, and when each was used last."""

    def __init__(self, count: int, room: int) -> None:
        self._room = room
        self._used: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self._resident: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._on_host: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._now = 0

    def use(self, touched: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Touch blocks in order; gives how many were brought from the host, and how many sent there for room.

        More than there is room for pass through: of those touched, the last stay.
        """
        self._now += 1
        self._used[touched] = self._now
        missing = touched[~self._resident[touched]]
        brought = int(np.count_nonzero(self._on_host[missing]))
        passing = max(0, len(missing) - self._room)
        self._resident[missing] = True
        self._on_host[missing] = False
        over = int(np.count_nonzero(self._resident)) - self._room
        if over > 0:
            resident = np.flatnonzero(self._resident)
            # Of those used at the same time, the first ones touched go first.
            gone = resident[np.argsort(self._used[resident], kind="stable")[:over]]
            self._resident[gone] = False
            self._on_host[gone] = True
        return brought, max(over, passing)


# Swap everything (vDNN: Rhu et al., MICRO 2016): all feature maps leave after the forward pass has used them.


@dataclass(frozen=True)
class Swapping:
    """What is copied around one kernel, by name.

    Attributes:
        at_once: comes in before the kernel, which waits for it.
        inward: comes in beside the kernel; the next one waits for it.
        outward: leaves beside the kernel; the next one waits for it.
    """

    at_once: list[str] = field(default_factory=list)
    inward: list[str] = field(default_factory=list)
    outward: list[str] = field(default_factory=list)


def swapping(graph: Graph) -> Iterator[Swapping]:
    """`vDNN_all`, with kernels in the place of its layers.

    A feature map that the backward pass reads is copied out beside the last kernel of the forward pass that uses it,
    and the next kernel waits for that; one that this kernel makes is copied out beside the next. Beside a kernel of the
    backward pass, the feature maps of the next kernel that needs any are copied in, and the kernel after it waits for
    that; never for two kernels at once. Nothing asks how much room there is.
    """
    forward = last_forward_kernel(graph)
    leaving, needed = defaultdict(list), defaultdict(list)
    for tensor in graph.tensors:
        if is_feature_map(tensor, forward):
            leaving[departure(tensor, forward)].append(tensor.name)
            needed[min(user for user in tensor.users if user > forward)].append(tensor.name)
    to_come = sorted(needed, reverse=True)
    ahead = -1  # the kernel that the last maps were brought in for, while another ran
    for index in range(len(graph.kernels)):
        done = Swapping(outward=leaving[index])
        if to_come and to_come[-1] == index:
            done.at_once.extend(needed[to_come.pop()])
        if index > forward and ahead <= index and to_come:
            ahead = to_come[-1]
            done.inward.extend(needed[to_come.pop()])
        yield done


def swap_everything(problem: Problem) -> Simulated:
    """`swapping` on three engines; a step whose most bytes exceed the limit does not fit."""
    graph, engines = fastest(problem), Engines()
    back: dict[str, int] = {}

    def begun(engine: Engine, names: list[str]) -> list[tuple[Engine, int]]:
        return [copy(engines, problem, engine, name, graph.by_name[name].size_bytes) for name in names]

    def made(names: list[str], index: int) -> list[str]:
        return [name for name in names if graph.by_name[name].producer == index]

    around = [*swapping(graph), Swapping()]
    late: list[tuple[Engine, int]] = []
    for index, (kernel, done) in enumerate(zip(graph.kernels, around, strict=False)):
        waits = late
        for asked in begun(Engine.IN, done.at_once):
            engines.wait(asked)
        back |= dict.fromkeys((*done.at_once, *done.inward), index)
        early = made(done.outward, index - 1)  # asked for when the kernel before had made them
        waits += begun(Engine.IN, done.inward)
        waits += begun(Engine.OUT, [name for name in done.outward if name not in early])
        engines.compute(kernel.name, problem.profile.base_us(kernel))
        late = begun(Engine.OUT, made(around[index + 1].outward, index))
        for asked in waits:
            engines.wait(asked)
    return simulated(problem, graph, engines, _most_bytes_swapping(graph, back))


def is_feature_map(tensor: Tensor, forward: int) -> bool:
    """Whether both passes use it."""
    used = tensor.users
    return tensor.role is Role.INTERMEDIATE and used[0] <= forward < used[-1]


def departure(tensor: Tensor, forward: int) -> int:
    """The kernel that a feature map leaves beside."""
    last = max(user for user in tensor.users if user <= forward)
    return last + 1 if tensor.producer == last else last


def _most_bytes_swapping(graph: Graph, back: dict[str, int]) -> int:
    forward, change = last_forward_kernel(graph), [0] * (len(graph.kernels) + 1)

    def held(start: int, stop: int, size: int) -> None:
        change[start] += size
        change[min(stop, len(graph.kernels))] -= size

    for tensor in graph.movable:
        size, live = tensor.allocated_bytes, tensor.live
        gone = departure(tensor, forward) + 1 if tensor.name in back else live.stop
        if gone >= back.get(tensor.name, 0):
            held(live.start, live.stop, size)
        else:
            held(live.start, gone, size)
            held(back[tensor.name], live.stop, size)
    return max(accumulate(change), default=0)


# PyTorch's `save_on_cpu(pin_memory=True)`: what autograd saves for the backward pass waits for it in host memory.


def saved(graph: Graph) -> dict[str, list[range]]:
    """What autograd saves of a step: by tensor, the kernels [first, last] of each operation that wants it back.

    Saved is what a kernel of the forward pass uses and one of the backward pass reads, parameters and inputs too
    (`SavedVariable` gives leaves to the hooks as it gives them all else). Each operation saves, and so copies, for
    itself: the result of a ReLU goes to the host for the ReLU and once more for the convolution that reads it. Kernels
    of the backward pass that read the same gradient are one operation, as those for the data and the weights of a
    convolution; a kernel that only updates a parameter wants nothing back.
    """
    forward = last_forward_kernel(graph)
    found: dict[str, list[range]] = {}
    for tensor in graph.tensors:
        if tensor.role is Role.WORKSPACE or not tensor.users or tensor.users[0] > forward:
            continue
        wanted = [user for user in tensor.readers if user > forward and not _updates(graph, user, tensor.name)]
        if wanted:
            found[tensor.name] = _operations(graph, wanted, forward)
    return found


def save_on_cpu(problem: Problem) -> Simulated:
    """A step under `torch.autograd.graph.save_on_cpu(pin_memory=True)`, on the kernels of this step.

    In torch/autograd/graph.py of PyTorch 2.13 both hooks copy on the stream of the operators: `pack_to_cpu` by
    `packed.copy_(tensor, non_blocking=True)`, `unpack_from_cpu` by `tensor.to(device, non_blocking=True)`. The host
    does not wait, but the kernels after them do, so that no copy is beside a kernel. A tensor is copied out when it is
    there, an argument before the first kernel that reads it; its memory is free after its last use in the forward pass.
    Each operation of the backward pass has a copy of its own, for as long as it runs. When copies are made changes
    neither the time of the step nor its memory. Pinned memory is taken to be there: PyTorch keeps it from step to step.
    """
    graph, engines = fastest(problem), Engines()
    wanted = saved(graph)
    outward, inward = defaultdict(list), defaultdict(list)
    for name, operations in wanted.items():
        tensor = graph.by_name[name]
        after = tensor.producer if tensor.producer is not None else tensor.readers[0] - 1
        outward[after].extend([name] * len(operations))
        for operation in operations:
            inward[operation.start].append(name)

    def copied(engine: Engine, names: list[str]) -> None:
        for name in names:
            copy_and_wait(engines, problem, engine, name, graph.by_name[name].size_bytes)

    copied(Engine.OUT, outward[-1])
    for index, kernel in enumerate(graph.kernels):
        copied(Engine.IN, inward[index])
        engines.compute(kernel.name, problem.profile.base_us(kernel))
        copied(Engine.OUT, outward[index])
    text = "copies on the stream of the kernels"
    return simulated(problem, graph, engines, _most_bytes_saving(graph, wanted), remark=text)


def _updates(graph: Graph, index: int, name: str) -> bool:
    """Whether a kernel writes what it reads of a tensor: the update of a parameter or a state."""
    return any(storage_of(graph, operand.tensor) == name for operand in graph.kernels[index].outputs)


def _operations(graph: Graph, wanted: list[int], forward: int) -> list[range]:
    """Kernels of the backward pass that read a tensor, by operation."""
    groups: list[tuple[set[str], list[int]]] = []
    for index in wanted:
        read = (graph.by_name[operand.tensor] for operand in graph.kernels[index].inputs)
        gradients = {tensor.name for tensor in read if tensor.producer is not None and tensor.producer > forward}
        same = [group for group in groups if group[0] & gradients]
        groups = [group for group in groups if group not in same]
        members = sorted([index, *(one for _, kernels in same for one in kernels)])
        groups.append((gradients.union(*(others for others, _ in same)), members))
    return [range(kernels[0], kernels[-1] + 1) for _, kernels in groups]


def _most_bytes_saving(graph: Graph, wanted: dict[str, list[range]]) -> int:
    """The most on the device at once: originals until the forward pass has used them, and copies for operations."""
    forward, change = last_forward_kernel(graph), [0] * (len(graph.kernels) + 1)
    for tensor in graph.tensors:
        copies = wanted.get(tensor.name, [])
        held = list(copies)
        if tensor.is_movable:
            gone = copies and tensor.role is Role.INTERMEDIATE
            last = max(user for user in tensor.users if user <= forward) + 1 if gone else tensor.live.stop
            held.append(range(tensor.live.start, last))
        for span in held:
            change[span.start] += tensor.allocated_bytes
            change[span.stop] -= tensor.allocated_bytes
    return max(accumulate(change), default=0)


# Recomputation by segments (Chen et al., arXiv:1604.06174): what lies between two checkpoints is computed again.


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
    step: ChosenGraph

    @property
    def most_bytes(self) -> int:
        """The most that is in memory at once, without holes between."""
        return self.step.peak_live_bytes

    def repeated_us(self, profile: Profile) -> float:
        """What kernels take that run again."""
        return sum(profile.base_us(self.step.kernels[number]) for number in repeats(self.calls))


def segmentations(graph: ChosenGraph) -> Iterator[Segments]:
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


# Rivals by name.

_PLACING = {
    "lru-paging": page_tensors,
    "swap-all": swap_everything,
    "recompute": recompute_segments,
    "save-on-cpu": save_on_cpu,
}
_MANAGED = "managed-memory"
RIVALS = (_MANAGED, *_PLACING)


def run_rival(name: str, problem: Problem, managed: ManagedPaging) -> Simulated:
    """The step as that rival makes it.

    Raises:
        BadInputError: there is no such rival.
    """
    if name == _MANAGED:
        return run_managed(problem, managed)
    if name not in _PLACING:
        raise unknown_name("rival", name, RIVALS)
    return _PLACING[name](problem)
