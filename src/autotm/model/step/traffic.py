"""How many bytes of slow memory a kernel reads and writes in a configuration."""

from __future__ import annotations

import math

import numpy as np

from autotm.model.step.graph import Graph, Kernel
from autotm.model.step.role import Role
from autotm.model.step.tier import Configuration

_LOOKUPS = ("embedding", "embedding_concat", "embedding_update")
"""Operations that touch no more rows of a table than they have indices."""
_KEPT = {Role.PARAMETER, Role.STATE}
"""What a table can be."""


def slow_traffic(graph: Graph, kernel: Kernel, config: Configuration) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each slow tensor that `kernel` reads, and of each that it writes.

    A tensor counts once a direction, whatever number of slots it fills; a workspace is written and read. Of a table
    that is looked up in, the rows that are looked up count, as many as there are indices.
    """
    touched = _looked_up_rows(graph, kernel)
    inputs, outputs = len(kernel.inputs), len(kernel.inputs) + len(kernel.outputs)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for slot, (operand, letter) in enumerate(zip(kernel.operands, config, strict=True)):
        if letter == "D":
            continue
        size = graph.by_name[operand.tensor].size_bytes
        if touched is not None:
            size = min(size, touched * (operand.shape or (1,))[-1] * np.dtype(operand.dtype).itemsize)
        if slot < inputs or slot >= outputs:
            read[operand.tensor] = size
        if slot >= inputs:
            written[operand.tensor] = size
    return tuple(read.values()), tuple(written.values())


def _looked_up_rows(graph: Graph, kernel: Kernel) -> int | None:
    """Rows of each table that a lookup touches at most, of several tables on average; None for other kernels."""
    if kernel.op not in _LOOKUPS:
        return None
    indices = [operand for operand in kernel.inputs if np.dtype(operand.dtype).kind in "iu"]
    tables = [operand for operand in kernel.inputs if graph.by_name[operand.tensor].role in _KEPT]
    return -(-sum(math.prod(operand.shape) for operand in indices) // max(len(tables), 1))
