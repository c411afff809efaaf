"""Swap everything (vDNN: Rhu et al., MICRO 2016): all feature maps leave after the forward pass has used them."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from autotm.model.plan import Engine
from autotm.model.step import Graph, Role, Tensor
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, copy, fastest, last_forward_kernel, simulated


def swap_everything(problem: Problem) -> Simulated:
    """`vDNN_all`, with kernels in the place of its layers.

    A feature map that the backward pass reads is copied out beside the last kernel of the forward pass that uses it,
    and the next kernel waits for that. Beside a kernel of the backward pass, the feature maps of the next kernel that
    needs any are copied in, and the kernel after it waits for that; never for two kernels at once. Nothing asks how
    much room there is: a step whose most bytes exceed the limit does not fit.
    """
    graph, engines = fastest(problem), Engines()
    forward = last_forward_kernel(graph)
    maps = {tensor.name: tensor for tensor in graph.tensors if _is_feature_map(tensor, forward)}
    leaving, needed = defaultdict(list), defaultdict(list)
    for tensor in maps.values():
        leaving[max(user for user in tensor.users if user <= forward)].append(tensor)
        needed[min(user for user in tensor.users if user > forward)].append(tensor)
    to_come = sorted(needed, reverse=True)
    back: dict[str, int] = {}
    ahead = -1  # the kernel that the last maps were brought in for, while another ran
    late: list[tuple[Engine, int]] = []
    for index, kernel in enumerate(graph.kernels):
        waits, late = late, []
        if to_come and to_come[-1] == index:
            for tensor in needed[to_come.pop()]:
                back[tensor.name] = index
                engines.wait(copy(engines, problem, Engine.IN, tensor.name, tensor.size_bytes))
        if index > forward and ahead <= index and to_come:
            ahead = to_come[-1]
            for tensor in needed[to_come.pop()]:
                back[tensor.name] = index
                waits.append(copy(engines, problem, Engine.IN, tensor.name, tensor.size_bytes))
        read, made = _parted(leaving[index], index)
        waits += [copy(engines, problem, Engine.OUT, tensor.name, tensor.size_bytes) for tensor in read]
        engines.compute(kernel.name, problem.profile.base_us(kernel))
        late = [copy(engines, problem, Engine.OUT, tensor.name, tensor.size_bytes) for tensor in made]
        for asked in waits:
            engines.wait(asked)
    return simulated(problem, graph, engines, _most_bytes(graph, maps, back, forward))


def _is_feature_map(tensor: Tensor, forward: int) -> bool:
    """Whether both passes use it."""
    used = tensor.users
    return tensor.role is Role.INTERMEDIATE and used[0] <= forward < used[-1]


def _parted(leaving: list[Tensor], index: int) -> tuple[list[Tensor], list[Tensor]]:
    """Those that the kernel reads, and those that it makes: these can only leave beside the kernel after it."""
    read = [tensor for tensor in leaving if tensor.producer != index]
    return read, [tensor for tensor in leaving if tensor.producer == index]


def _most_bytes(graph: Graph, maps: dict[str, Tensor], back: dict[str, int], forward: int) -> int:
    change = [0] * (len(graph.kernels) + 1)

    def held(start: int, stop: int, size: int) -> None:
        change[start] += size
        change[min(stop, len(graph.kernels))] -= size

    for tensor in graph.movable:
        size, live = tensor.allocated_bytes, tensor.live
        if tensor.name not in maps:
            held(live.start, live.stop, size)
            continue
        last = max(user for user in tensor.users if user <= forward)
        gone = last + 2 if tensor.producer == last else last + 1
        again = back[tensor.name]
        if gone >= again:
            held(live.start, live.stop, size)
        else:
            held(live.start, gone, size)
            held(again, live.stop, size)
    return max(accumulate(change), default=0)
