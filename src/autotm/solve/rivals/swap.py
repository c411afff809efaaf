"""Swap everything (vDNN: Rhu et al., MICRO 2016): all feature maps leave after the forward pass has used them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from autotm.model.plan import Engine
from autotm.model.step import Graph, Role, Tensor
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, copy, fastest, last_forward_kernel, simulated


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
    return simulated(problem, graph, engines, _most_bytes(graph, back))


def is_feature_map(tensor: Tensor, forward: int) -> bool:
    """Whether both passes use it."""
    used = tensor.users
    return tensor.role is Role.INTERMEDIATE and used[0] <= forward < used[-1]


def departure(tensor: Tensor, forward: int) -> int:
    """The kernel that a feature map leaves beside."""
    last = max(user for user in tensor.users if user <= forward)
    return last + 1 if tensor.producer == last else last


def _most_bytes(graph: Graph, back: dict[str, int]) -> int:
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
