"""The step without a plan: every tensor in fast memory. What plans must reproduce, and what they are compared with."""

from __future__ import annotations

from collections.abc import Collection

from autotm.layout import Blocks, pack_blocks
from autotm.model.files import hash_of
from autotm.model.plan import Address, KernelStep, Program, Stay
from autotm.model.step import Graph, Tier


def plain_program(graph: Graph, slow: Collection[str] = ()) -> Program:
    """A program in which every tensor has memory of its own: nothing is reused that could be overwritten too early.

    Tensors in `slow` are in slow memory for life.
    """
    offsets, total = {}, 0
    for tensor in graph.movable:
        offsets[tensor.name] = total
        total += tensor.allocated_bytes
    return _program(graph, "plain", offsets, total, slow)


def all_fast_program(graph: Graph) -> Program:
    """A program that reuses memory as soon as its tensor is dead, as planned ones do: what their times compare with."""
    stays = [Stay(tensor.name, Tier.DRAM, tensor.live.start, tensor.live.stop) for tensor in graph.movable]
    blocks = Blocks.of(graph, stays)
    packed = pack_blocks(blocks)
    offsets = {stay.tensor: int(offset) for stay, offset in zip(stays, packed, strict=True)}
    return _program(graph, "all-fast", offsets, blocks.height(packed))


def _program(graph: Graph, name: str, offsets: dict[str, int], total: int, slow: Collection[str] = ()) -> Program:
    def address(tensor: str) -> Address:
        return Address(Tier.PMEM if tensor in slow else Tier.DRAM, offsets.get(tensor))

    steps = tuple(
        KernelStep(index, tuple(address(operand.tensor) for operand in kernel.operands))
        for index, kernel in enumerate(graph.kernels)
    )
    return Program(hash_of(graph), "", name, "none", total, total, total if slow else 0, steps)
