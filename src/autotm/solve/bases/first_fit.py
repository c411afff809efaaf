"""The addresses that a plain framework gives the tensors of a step: first fit in execution order, as nGraph did."""

from __future__ import annotations

from bisect import insort

from autotm.model.step import Graph
from autotm.solve.bases.heap import Heap


def first_fit(graph: Graph) -> tuple[dict[str, int], int]:
    """An offset for every movable tensor, and the bytes that they take.

    Each takes the lowest room that there is when it is born, and gives it back when the last kernel to use it is done.
    """
    births = sorted(graph.movable, key=lambda tensor: tensor.live.start)
    heap = Heap(sum(tensor.allocated_bytes for tensor in births))
    offsets: dict[str, int] = {}
    deaths: list[tuple[int, int, int]] = []
    top = 0
    for tensor in births:
        while deaths and deaths[0][0] <= tensor.live.start:
            _, offset, size_bytes = deaths.pop(0)
            heap.free(offset, size_bytes)
        found = heap.take_first(tensor.allocated_bytes)
        assert found is not None, "the heap has room for all tensors at once"
        offsets[tensor.name] = found
        top = max(top, found + tensor.allocated_bytes)
        insort(deaths, (tensor.live.stop, found, tensor.allocated_bytes))
    return offsets, top
