"""PyTorch's `save_on_cpu(pin_memory=True)`: what autograd saves for the backward pass waits for it in host memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from autotm.model.plan import Engine
from autotm.model.step import Graph, Role, storage_of
from autotm.solve.problem import Problem
from autotm.solve.rivals.engines import Engines
from autotm.solve.rivals.simulated import Simulated, copy_and_wait, fastest, last_forward_kernel, simulated


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
    return simulated(problem, graph, engines, _most_bytes(graph, wanted), remark=text)


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


def _most_bytes(graph: Graph, wanted: dict[str, list[range]]) -> int:
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
