"""Steps of any length from one of a real network, for finding out how the solver scales."""

from __future__ import annotations

from dataclasses import replace
from sys import intern

from autotm.model.graph import Graph, Kernel, Operand, Tensor


def deepened(graph: Graph, kernels: int) -> Graph:
    """Return the step repeated until it has at least so many kernels: a network whose parts are whole networks.

    All forward passes run in order, then all backward passes in reverse, so that activations of the first copy live
    longest and the peak grows with the depth. A forward pass is what comes before the most bytes live. Each kernel has
    an identity of its own, so that noise on its costs is its own, too.
    """
    copies = -(-kernels // len(graph.kernels))
    turn = graph.live_bytes.index(graph.peak_live_bytes)
    forward, backward = range(turn), range(turn, len(graph.kernels))
    order = [(copy, index) for copy in range(copies) for index in forward]
    order += [(copy, index) for copy in reversed(range(copies)) for index in backward]
    place = {origin: position for position, origin in enumerate(order)}
    return Graph(
        network=f"{graph.network} x {copies}",
        scale=graph.scale,
        batch=graph.batch,
        kernels=tuple(_kernel(graph.kernels[index], copy) for copy, index in order),
        tensors=tuple(_tensor(tensor, copy, place) for copy in range(copies) for tensor in graph.tensors),
    )


def _named(name: str, copy: int) -> str:
    return intern(f"{name}.{copy}")


def _operands(operands: tuple[Operand, ...], copy: int) -> tuple[Operand, ...]:
    return tuple(replace(operand, tensor=_named(operand.tensor, copy)) for operand in operands)


def _kernel(kernel: Kernel, copy: int) -> Kernel:
    return replace(
        kernel,
        name=_named(kernel.name, copy),
        identity=_named(kernel.name, copy),
        inputs=_operands(kernel.inputs, copy),
        outputs=_operands(kernel.outputs, copy),
        workspaces=_operands(kernel.workspaces, copy),
        alternatives=(),
    )


def _tensor(tensor: Tensor, copy: int, place: dict[tuple[int, int], int]) -> Tensor:
    return replace(
        tensor,
        name=_named(tensor.name, copy),
        producer=None if tensor.producer is None else place[copy, tensor.producer],
        readers=tuple(place[copy, reader] for reader in tensor.readers),
        alias_of=None if tensor.alias_of is None else _named(tensor.alias_of, copy),
    )
