"""The plain step: the same kernels with every tensor in fast memory of its own. What every plan must reproduce."""

from __future__ import annotations

from autotm.model.files import hash_of
from autotm.model.graph import Graph
from autotm.model.program import Address, KernelStep, Program
from autotm.model.tier import Tier


def plain_program(graph: Graph) -> Program:
    """A program without plan, moves and reuse of memory."""
    offsets, total = {}, 0
    for tensor in graph.movable:
        offsets[tensor.name] = total
        total += tensor.allocated_bytes
    steps = tuple(
        KernelStep(index, tuple(Address(Tier.DRAM, offsets.get(operand.tensor)) for operand in kernel.operands))
        for index, kernel in enumerate(graph.kernels)
    )
    return Program(hash_of(graph), "", "plain", "none", total, total, 0, steps)
