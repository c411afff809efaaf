"""Other methods for steps beyond a GPU's memory, simulated on its three engines."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from autotm.model.graph import ChosenGraph, Graph, Role, Tensor, Tier
from autotm.model.limit import Counts, counting, fixed_bytes, storage_of
from autotm.model.machine import GpuManagedMemory
from autotm.model.plan import LRU_PAGING, MANAGED_MEMORY, RECOMPUTE, SAVE_ON_CPU, SWAP_ALL, called, repeats
from autotm.model.profile import Profile
from autotm.model.timeline import Engine
from autotm.solve.gpu_simulation import Engines, Simulated, fastest, last_forward_kernel, peak_bytes
from autotm.solve.paging import PageMap, first_fit
from autotm.solve.problem import Problem

# Paging of whole tensors: the tensor used least recently leaves the device when memory is full.


@dataclass(frozen=True)
class Paging:
    """The page-outs and page-ins of whole tensors before one kernel.

    Attributes:
        kernel: its index.
        gone: tensors that leave the device.
        out: those of them that are copied to the host; the others are there already.
        brought: tensors that are copied in.
        used_bytes: bytes in use on the device during the kernel.
    """

    kernel: int
    gone: list[str]
    out: list[str]
    brought: list[str]
    used_bytes: int


def paging(graph: Graph, limit_bytes: int) -> Iterator[Paging]:
    """Yield the copies of demand paging, kernel by kernel: nothing is known of the kernels to come.

    Before a kernel its operands are brought in, and room for them and for its results is made. A tensor is written
    once, so it is *dirty* until its first copy to the host, and dropped without one afterwards; what nobody will read
    is freed. Room is counted in bytes, without fragments. What every step finds on the device, where the limit counts
    it, stays there.
    """
    size_of = {tensor.name: tensor.allocated_bytes for tensor in graph.tensors}
    held = {tensor.name for tensor in graph.tensors if tensor.held}
    resident = OrderedDict.fromkeys(sorted(held))  # What was used least recently is first.
    on_host: set[str] = set()
    used_bytes = sum(size_of[name] for name in held)
    for index, kernel in enumerate(graph.kernels):
        operands = graph.slots_of(kernel)
        missing = [name for name in operands if name not in resident]
        for name in operands:
            if name in resident:
                resident.move_to_end(name)
        used_bytes += sum(size_of[name] for name in missing)
        gone: list[str] = []
        for name in [name for name in resident if name not in operands and name not in held]:
            if used_bytes <= limit_bytes:
                break
            gone.append(name)
            del resident[name]
            used_bytes -= size_of[name]
        out = [name for name in gone if name not in on_host]
        on_host.update(out)
        resident.update(dict.fromkeys(missing))
        yield Paging(index, gone, out, [name for name in missing if name in on_host], used_bytes)
        for name in operands:
            if graph.by_name[name].live.stop == index + 1 and name not in held:
                del resident[name]
                used_bytes -= size_of[name]


def page_tensors(problem: Problem) -> Simulated:
    """Simulate `paging` on three engines; kernels wait for all copies."""
    graph, engines, most_bytes = fastest(problem), Engines(problem), 0
    for done, kernel in zip(paging(graph, problem.limit_bytes), graph.kernels, strict=True):
        for engine, names in ((Engine.OUT, done.out), (Engine.IN, done.brought)):
            for name in names:
                engines.copy_and_wait(engine, name, graph.by_name[name].size_bytes)
        engines.compute(kernel)
        most_bytes = max(most_bytes, done.used_bytes)
    return engines.simulated(graph, most_bytes)


# Memory that the GPU's driver moves by page faults (cudaMallocManaged), as a model: the baseline of figure 12.

_STEPS = 2
"""The first finds nothing on the device; what the last one found, all after it find."""


def run_managed(problem: Problem, managed: GpuManagedMemory) -> Simulated:
    """Simulate the plain step in one managed pool, with a plan's device memory, that of the arguments included.

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
    for _ in range(_STEPS):
        engines = Engines(problem)
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
            engines.compute(kernel)
    most_bytes = min(pool_bytes, device_bytes, problem.limit_bytes)
    return engines.simulated(graph, most_bytes, remark="a model of page faults; nothing was run in managed memory")


class _Blocks:
    """Which blocks are on the device, `capacity` at most, and when each was used last."""

    def __init__(self, count: int, capacity: int) -> None:
        self._capacity = capacity
        self._used: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self._resident: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._on_host: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._now = 0

    def use(self, touched: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Touch blocks in order; return how many were brought from the host, and how many were evicted to it.

        Where more are touched than the device holds, the last of them stay.
        """
        self._now += 1
        self._used[touched] = self._now
        missing = touched[~self._resident[touched]]
        brought = int(np.count_nonzero(self._on_host[missing]))
        passing = max(0, len(missing) - self._capacity)
        self._resident[missing] = True
        self._on_host[missing] = False
        over = int(np.count_nonzero(self._resident)) - self._capacity
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
    """The tensors that are copied around one kernel, by name.

    Attributes:
        at_once: tensors copied in before the kernel, which waits for them.
        inward: tensors copied in while the kernel runs; the next kernel waits for them.
        outward: tensors copied out while the kernel runs; the next kernel waits for them.
    """

    at_once: list[str] = field(default_factory=list)
    inward: list[str] = field(default_factory=list)
    outward: list[str] = field(default_factory=list)


def swapping(graph: Graph) -> Iterator[Swapping]:
    """Yield the copies of `vDNN_all`, kernel by kernel; kernels stand for its layers.

    A feature map that the backward pass reads is copied out beside the last kernel of the forward pass that uses it,
    and the next kernel waits for that; one that this kernel makes is copied out beside the next. Beside a kernel of the
    backward pass, the feature maps of the next kernel that needs any are copied in, and the kernel after it waits for
    that; never for two kernels at once. Free memory is not checked.
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
    """Simulate `swapping` on three engines; a step whose most bytes exceed the limit does not fit."""
    graph, engines = fastest(problem), Engines(problem)
    back: dict[str, int] = {}

    def begun(engine: Engine, names: list[str]) -> list[tuple[Engine, int]]:
        return [engines.copy(engine, name, graph.by_name[name].size_bytes) for name in names]

    def produced(names: list[str], index: int) -> list[str]:
        return [name for name in names if graph.by_name[name].producer == index]

    around = [*swapping(graph), Swapping()]
    late: list[tuple[Engine, int]] = []
    for index, (kernel, done) in enumerate(zip(graph.kernels, around, strict=False)):
        waits = late
        for asked in begun(Engine.IN, done.at_once):
            engines.wait(asked)
        back |= dict.fromkeys((*done.at_once, *done.inward), index)
        early = produced(done.outward, index - 1)  # asked for when the kernel before had made them
        waits += begun(Engine.IN, done.inward)
        waits += begun(Engine.OUT, [name for name in done.outward if name not in early])
        engines.compute(kernel)
        late = begun(Engine.OUT, produced(around[index + 1].outward, index))
        for asked in waits:
            engines.wait(asked)
    return engines.simulated(graph, peak_bytes(_held_swapping(graph, back)))


def is_feature_map(tensor: Tensor, forward: int) -> bool:
    """Return whether the tensor is an intermediate that the forward and the backward pass use."""
    used = tensor.users
    return tensor.role is Role.INTERMEDIATE and used[0] <= forward < used[-1]


def departure(tensor: Tensor, forward: int) -> int:
    """Return the kernel that overlaps the copy of a feature map to the host."""
    last = max(user for user in tensor.users if user <= forward)
    return last + 1 if tensor.producer == last else last


def _held_swapping(graph: Graph, back: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first kernel, kernel behind the last, bytes) of each time that a tensor is on the device."""
    forward = last_forward_kernel(graph)
    for tensor in graph.movable:
        size_bytes, live = tensor.allocated_bytes, tensor.live
        gone = departure(tensor, forward) + 1 if tensor.name in back else live.stop
        if gone >= back.get(tensor.name, 0):
            yield live.start, live.stop, size_bytes
        else:
            yield live.start, gone, size_bytes
            yield back[tensor.name], live.stop, size_bytes


# PyTorch's `save_on_cpu(pin_memory=True)`: what autograd saves for the backward pass waits for it in host memory.


def saved(graph: Graph) -> dict[str, list[range]]:
    """Return the tensors that autograd saves, each with the kernels [first, last] of the operations that need it back.

    A tensor is saved if a kernel of the forward pass uses it and one of the backward pass reads it, parameters and
    inputs too (`SavedVariable` gives leaves to the hooks like all other tensors). Each operation saves, and so copies,
    for itself: the result of a ReLU goes to the host for the ReLU and once more for the convolution that reads it.
    Kernels of the backward pass that read the same gradient are one operation, as those for the data and the weights of
    a convolution; a kernel that only updates a parameter needs nothing back.
    """
    forward = last_forward_kernel(graph)
    operations: dict[str, list[range]] = {}
    for tensor in graph.tensors:
        if tensor.role is Role.WORKSPACE or not tensor.users or tensor.users[0] > forward:
            continue
        wanted = [user for user in tensor.readers if user > forward and not _updates(graph, user, tensor.name)]
        if wanted:
            operations[tensor.name] = _operations(graph, wanted, forward)
    return operations


def save_on_cpu(problem: Problem) -> Simulated:
    """Simulate the step under `torch.autograd.graph.save_on_cpu(pin_memory=True)`, on the kernels of this step.

    In torch/autograd/graph.py of PyTorch 2.13 both hooks copy on the stream of the operators: `pack_to_cpu` by
    `packed.copy_(tensor, non_blocking=True)`, `unpack_from_cpu` by `tensor.to(device, non_blocking=True)`. The host
    does not wait, but the kernels after them do, so that no copy is beside a kernel. A tensor is copied out when it is
    there, an argument before the first kernel that reads it; its memory is free after its last use in the forward pass.
    Each operation of the backward pass has a copy of its own, for as long as it runs. When copies are made changes
    neither the time of the step nor its memory. Pinned memory is taken to be there: PyTorch keeps it from step to step.
    """
    graph, engines = fastest(problem), Engines(problem)
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
            engines.copy_and_wait(engine, name, graph.by_name[name].size_bytes)

    copied(Engine.OUT, outward[-1])
    for index, kernel in enumerate(graph.kernels):
        copied(Engine.IN, inward[index])
        engines.compute(kernel)
        copied(Engine.OUT, outward[index])
    most_bytes = peak_bytes(_held_saving(graph, wanted))
    return engines.simulated(graph, most_bytes, remark="copies on the stream of the kernels")


def _updates(graph: Graph, index: int, name: str) -> bool:
    """Return whether a kernel writes what it reads of a tensor: the update of a parameter or a state."""
    return any(storage_of(graph, operand.tensor) == name for operand in graph.kernels[index].outputs)


def _operations(graph: Graph, wanted: list[int], forward: int) -> list[range]:
    """Return the kernels of the backward pass that read a tensor, by operation."""
    groups: list[tuple[set[str], list[int]]] = []
    for index in wanted:
        read = (graph.by_name[operand.tensor] for operand in graph.kernels[index].inputs)
        gradients = {tensor.name for tensor in read if tensor.producer is not None and tensor.producer > forward}
        same = [group for group in groups if group[0] & gradients]
        groups = [group for group in groups if group not in same]
        members = sorted([index, *(one for _, kernels in same for one in kernels)])
        groups.append((gradients.union(*(others for others, _ in same)), members))
    return [range(kernels[0], kernels[-1] + 1) for _, kernels in groups]


def _held_saving(graph: Graph, wanted: Mapping[str, list[range]]) -> Iterator[tuple[int, int, int]]:
    """Yield spans as `_held_swapping` does: originals until the forward pass has used them, and operations' copies."""
    forward = last_forward_kernel(graph)
    for tensor in graph.tensors:
        copies = wanted.get(tensor.name, [])
        for span in copies:
            yield span.start, span.stop, tensor.allocated_bytes
        if tensor.is_movable:
            gone = copies and tensor.role is Role.INTERMEDIATE
            last = max(user for user in tensor.users if user <= forward) + 1 if gone else tensor.live.stop
            yield tensor.live.start, last, tensor.allocated_bytes


# Recomputation by segments (Chen et al., arXiv:1604.06174): what lies between two checkpoints is computed again.


@dataclass(frozen=True)
class Segments:
    """A step whose forward pass runs in segments.

    Attributes:
        count: number of segments.
        calls: kernels in the order in which they are called; empty where none runs again.
        step: the step with its kernels in the order of `calls`.
    """

    count: int
    calls: tuple[int, ...]
    step: ChosenGraph

    @property
    def most_bytes(self) -> int:
        """The most bytes of tensors in memory at once, without fragmentation."""
        return self.step.peak_live_bytes

    def repeated_us(self, profile: Profile) -> float:
        """Return the time of the kernels that run again, in microseconds."""
        return sum(profile.base_us(self.step.kernels[number]) for number in repeats(self.calls))


def segmentations(graph: ChosenGraph) -> Iterator[Segments]:
    """Yield the step with its forward pass in 2 to 2 sqrt(kernels) segments of as many kernels each.

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
    """Simulate the fastest of `segmentations` that fits the limit, or the leanest where none fits; it copies nothing.

    Memory is counted in bytes, without fragments.
    """
    graph = fastest(problem)
    tried = list(segmentations(graph))
    fitting = [one for one in tried if one.most_bytes <= problem.limit_bytes]
    # Of equals, what has the fewest segments.
    chosen = min(fitting, key=lambda one: (one.repeated_us(problem.profile), one.count), default=leanest_of(tried))
    engines = Engines(problem)
    for kernel in chosen.step.kernels:
        engines.compute(kernel)
    repeated_us, remark = chosen.repeated_us(problem.profile), f"{chosen.count} segments"
    return engines.simulated(graph, chosen.most_bytes, repeated_us=repeated_us, remark=remark)


def leanest_of(segments: Sequence[Segments]) -> Segments:
    """Return the segmentation that needs least memory; of equal ones, the one with the fewest segments."""
    return min(segments, key=lambda one: (one.most_bytes, one.count))


def _calls(graph: Graph, forward: int, count: int) -> tuple[int, ...]:
    """Return the kernels in the order of their calls; empty where none runs again."""
    writers: dict[str, list[int]] = defaultdict(list)  # By argument, the kernels that write over it.
    for index, kernel in enumerate(graph.kernels):
        for operand in kernel.outputs:
            if not graph.by_name[operand.tensor].role.is_movable:
                writers[storage_of(graph, operand.tensor)].append(index)

    def is_overwritten(kernel: int, before: int) -> bool:
        """Return whether an argument that the kernel reads is overwritten after it, and before kernel `before` runs."""
        storages = (storage_of(graph, operand.tensor) for operand in graph.kernels[kernel].inputs)
        return any(kernel < writer < before for storage in storages for writer in writers.get(storage, ()))

    once = set(chain.from_iterable(writers.values()))
    while True:
        calls = tuple(_Sequence(graph, forward, count, once).calls())
        again = repeats(calls)
        # What ran for the first time before a repeat are the kernels before the one that needs it.
        spoilt = {calls[number] for number in again if is_overwritten(calls[number], max(calls[:number]) + 1)}
        if not spoilt:
            return calls if again else ()
        once |= spoilt


class _Sequence:
    """The calls of a step whose forward pass of `forward` kernels has `count` segments; kernels `once` never repeat."""

    def __init__(self, graph: Graph, forward: int, count: int, once: set[int]) -> None:
        self._graph, self._forward, self._count, self._once = graph, forward, count, once
        self._dropped = {name for name in graph.by_name if self._is_dropped(name)}
        self._missing: dict[int, set[str]] = defaultdict(set)
        for name in self._dropped:
            self._missing[self._segment(self._producer(name))].add(name)

    def calls(self) -> Iterator[int]:
        """Yield the indices of the kernels in the order of their calls; those computed again come several times."""
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
        """Return the kernels of a segment that lead to what was dropped there, unless they ran again before."""
        wanted, kernels = list(self._missing.pop(segment, ())), set[int]()
        while wanted:
            producer = self._producer(wanted.pop())
            if producer not in kernels:
                kernels.add(producer)
                wanted += [name for name in self._read(producer) if self._is_inside(name, segment)]
        return sorted(kernels)

    def _is_inside(self, name: str, segment: int) -> bool:
        """Return whether a tensor that a segment reads was made in it, and is gone after it."""
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


def run_rival(name: str, problem: Problem, managed: GpuManagedMemory) -> Simulated:
    """Simulate the step under the method of `GPU_RIVALS` with this name."""
    simulations: dict[str, Callable[[Problem], Simulated]] = {
        MANAGED_MEMORY: lambda problem: run_managed(problem, managed),
        LRU_PAGING: page_tensors,
        SWAP_ALL: swap_everything,
        RECOMPUTE: recompute_segments,
        SAVE_ON_CPU: save_on_cpu,
    }
    return simulations[name](problem)
