"""The two kinds of memory, and which of them each slot of a kernel uses."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from sys import intern

from autotm.model.step.graph import Graph, Kernel


class Tier(StrEnum):
    """Fast (`dram`) and slow (`pmem`) memory under the names that records have always used, also for GPU and CXL."""

    DRAM = "dram"
    PMEM = "pmem"

    @property
    def letter(self) -> str:
        """D or P, as configurations are written."""
        return "D" if self is Tier.DRAM else "P"


Configuration = str
"""One letter per slot (inputs, outputs, workspaces): D = fast, P = slow; slots that cannot move are always D."""


def all_fast(kernel: Kernel) -> Configuration:
    """The configuration with every operand in fast memory."""
    return intern("D" * len(kernel.operands))


def configuration(graph: Graph, kernel: Kernel, slow: Collection[str]) -> Configuration:
    """The configuration of `kernel` when exactly the movable tensors in `slow` are in slow memory."""
    letters = list(all_fast(kernel))
    for tensor, slots in graph.slots_of(kernel).items():
        if tensor in slow:
            for slot in slots:
                letters[slot] = "P"
    return intern("".join(letters))
