"""What a limit counts: intermediates and workspaces only, as the paper does, or everything that the step touches."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from autotm.model.step.graph import Graph, Kernel, Operand, Tensor


class Counts(StrEnum):
    """Which tensors a plan places and a limit counts."""

    INTERMEDIATES = "intermediates"
    ALL = "all"


def counting(graph: Graph, counts: Counts) -> Graph:
    """The step as a plan for that limit sees it.

    With `ALL`, parameters, inputs, constants and results are placed too, each in one tier for good, because the next
    step finds them where this one leaves them. What shares memory (a parameter and its update) becomes one tensor,
    under the name of the one whose memory it is.
    """
    if counts is Counts.INTERMEDIATES:
        return graph
    storage = {tensor.name: storage_of(graph, tensor.name) for tensor in graph.tensors}
    users: dict[str, set[int]] = {name: set() for name in storage.values()}
    for tensor in graph.tensors:
        users[storage[tensor.name]].update(tensor.users)
    tensors = tuple(
        tensor if tensor.is_movable else _placed_for_good(tensor, users[tensor.name], len(graph.kernels))
        for tensor in graph.tensors
        if tensor.alias_of is None
    )
    return replace(graph, kernels=tuple(_renamed(kernel, storage) for kernel in graph.kernels), tensors=tensors)


def counted_by(graph: Graph) -> Counts:
    """What plans for this graph place: the inverse of `counting`."""
    return Counts.ALL if any(tensor.held for tensor in graph.tensors) else Counts.INTERMEDIATES


def fixed_bytes(graph: Graph) -> int:
    """Bytes of fast memory that no plan for this graph decides about: its arguments, unless they are placed too."""
    fixed = (tensor for tensor in graph.tensors if not tensor.is_movable and tensor.alias_of is None)
    return sum(tensor.allocated_bytes for tensor in fixed)


def storage_of(graph: Graph, tensor: str) -> str:
    """The tensor whose memory `tensor` uses: itself, or what it is in the end an alias of."""
    while (alias := graph.by_name[tensor].alias_of) is not None:
        tensor = alias
    return tensor


def _placed_for_good(tensor: Tensor, users: set[int], kernels: int) -> Tensor:
    readers = tuple(sorted(users - {tensor.producer}))
    return replace(tensor, readers=readers, held=(0, max(kernels, 1)))


def _renamed(kernel: Kernel, storage: dict[str, str]) -> Kernel:
    def renamed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(operand, tensor=storage.get(operand.tensor, operand.tensor)) for operand in operands)

    return replace(kernel, inputs=renamed(kernel.inputs), outputs=renamed(kernel.outputs))
