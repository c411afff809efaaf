"""What is done before each operator: waits, copies, memory given back and taken, in the order that `Move` states."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from autotm.model.plan import Layout, Move, Plan
from autotm.model.step import Tier


@dataclass
class Before:
    """Before one operator, in this order.

    Attributes:
        waits: numbers of copies that must be complete.
        emptied: (storage, offset) on the host that are read no more.
        written: (copy, storage, offset on the host) to the host, which the step waits for.
        freed: storages whose device memory is given back.
        read: (copy, storage, offset) from the host, which the step waits for.
        starts_out, starts_in: (copy, storage, offset), to run beside operators.
    """

    waits: list[int] = field(default_factory=list)
    emptied: list[tuple[int, int]] = field(default_factory=list)
    written: list[tuple[int, int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    read: list[tuple[int, int, int]] = field(default_factory=list)
    starts_out: list[tuple[int, int, int]] = field(default_factory=list)
    starts_in: list[tuple[int, int, int]] = field(default_factory=list)


def schedule(plan: Plan, layout: Layout, places: dict[str, int], kernels: int) -> list[Before]:
    """What is done before each kernel, and at the end.

    Args:
        plan: with every operand in fast memory.
        layout: of it.
        places: the storage of each tensor that moves or is freed; workspaces and arguments have none.
        kernels: of the plan's graph.
    """
    found = [Before() for _ in range(kernels + 1)]
    slow: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for stay, offset in zip(layout.stays, layout.offsets, strict=True):
        if stay.tensor not in places:
            continue
        if stay.tier is Tier.DRAM:
            found[stay.end].freed.append(places[stay.tensor])
        else:
            slow[stay.tensor].append((stay.start, stay.end, offset))
            found[stay.end].emptied.append((places[stay.tensor], offset))
    for number, move in enumerate(plan.moves):
        copy = number, places[move.tensor], _offset(slow[move.tensor], move)
        is_out = move.destination is Tier.PMEM
        if move.since is None:
            (found[move.before].written if is_out else found[move.before].read).append(copy)
            continue
        found[move.before].waits.append(number)
        (found[move.since].starts_out if is_out else found[move.since].starts_in).append(copy)
    return found


def _offset(stays: list[tuple[int, int, int]], move: Move) -> int:
    """Where on the host the copy goes to, or comes from."""
    (offset,) = [offset for start, end, offset in stays if start <= move.start < end]
    return offset
