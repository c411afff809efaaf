"""Results that another one is made of, element by element, in one pass: an update's states and its parameter, say."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import Schedule

from autotm.kernels.code import Access, Nest, read_nest, top_blocks


def merge_chains(schedule: Schedule) -> dict[str, list[Nest]]:
    """Give neighbouring results with equal loops the same ones where the last of them reads all others.

    Returns the nests that share loops, by the name of the first block.
    """
    outputs = list(schedule.mod["main"].params)
    chains: dict[str, list[Nest]] = {}
    run: list[Nest] = []
    for nest in [read_nest(schedule, block) for block in top_blocks(schedule)]:
        if nest is None or not _is_result(nest, outputs):
            run = []
            continue
        parts = [other for other in run if other.extents == nest.extents and _is_read(other, nest)]
        if parts and parts == run[-len(parts) :]:
            chain = [*parts, nest]
            schedule.merge(*(schedule.get_loops(schedule.get_sblock(each.name))[-1] for each in chain))
            chains[chain[0].name] = chain
            run = []
        else:
            run.append(nest)
    return chains


def _is_result(nest: Nest, outputs: Sequence[tirx.Buffer]) -> bool:
    (store,) = nest.stores
    return not nest.reduction and _is_own(store, nest) and any(store.buffer.same_as(output) for output in outputs)


def _is_read(part: Nest, nest: Nest) -> bool:
    """Whether `nest` reads what `part` writes, at its own element only."""
    reads = [access for access in nest.loads if access.buffer.same_as(part.stores[0].buffer)]
    return bool(reads) and all(_is_own(access, nest) for access in reads)


def _is_own(access: Access, nest: Nest) -> bool:
    return len(access.indices) == len(nest.variables) and all(
        index.same_as(variable) for index, variable in zip(access.indices, nest.variables, strict=True)
    )
