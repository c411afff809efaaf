"""How many bytes of slow memory a kernel reads and writes in a configuration."""

from __future__ import annotations

from autotm.model.graph import Graph, Kernel
from autotm.model.tier import Configuration


def slow_traffic(graph: Graph, kernel: Kernel, config: Configuration) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each slow tensor that `kernel` reads, and of each that it writes.

    A tensor counts once a direction, whatever number of slots it fills; a workspace is written and read.
    """
    inputs, outputs = len(kernel.inputs), len(kernel.inputs) + len(kernel.outputs)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for slot, (operand, letter) in enumerate(zip(kernel.operands, config, strict=True)):
        if letter == "D":
            continue
        size = graph.by_name[operand.tensor].size_bytes
        if slot < inputs or slot >= outputs:
            read[operand.tensor] = size
        if slot >= inputs:
            written[operand.tensor] = size
    return tuple(read.values()), tuple(written.values())
