"""Whether the offsets that a plan states give every stay bytes of its own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from autotm.check.fault import Fault, require
from autotm.check.rivals import UNLIMITED
from autotm.model.plan import Plan
from autotm.model.step import ALIGNMENT_BYTES, Graph, Limit, Tier


def check_addresses(graph: Graph, plan: Plan) -> None:
    """Offsets are aligned, keep the limit where plans have to, and no two stays of a tier share bytes during a kernel.

    `graph` is the step with the plan's implementations.

    Raises:
        FaultError: the first broken rule.
    """
    if not plan.offsets:
        return
    count = len(plan.offsets)
    require(count == len(plan.stays), Fault.ADDRESS, f"{count} offsets, {len(plan.stays)} stays")
    begins: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    unlimited = plan.optimizer in UNLIMITED or Limit.parse(plan.limit).is_unlimited
    for number, (stay, offset) in enumerate(zip(plan.stays, plan.offsets, strict=True)):
        require(offset >= 0 and offset % ALIGNMENT_BYTES == 0, Fault.ALIGNMENT, f"'{stay.tensor}' at offset {offset}")
        top = offset + graph.by_name[stay.tensor].allocated_bytes
        inside = stay.tier is Tier.PMEM or unlimited or top <= plan.dram_limit_bytes
        require(inside, Fault.LIMIT, f"'{stay.tensor}' ends at byte {top}, the limit is {plan.dram_limit_bytes}")
        begins[stay.start].append(number)
        ends[stay.end].append(number)
    held: dict[Tier, list[tuple[int, int, int]]] = {tier: [] for tier in Tier}
    for kernel in sorted(begins.keys() | ends.keys()):
        for number in ends[kernel]:
            held[plan.stays[number].tier].remove(_bytes(graph, plan, number))
        for number in begins[kernel]:
            _take(held[plan.stays[number].tier], _bytes(graph, plan, number), plan, kernel)


def _bytes(graph: Graph, plan: Plan, number: int) -> tuple[int, int, int]:
    offset = plan.offsets[number]
    return offset, offset + graph.by_name[plan.stays[number].tensor].allocated_bytes, number


def _take(held: list[tuple[int, int, int]], mine: tuple[int, int, int], plan: Plan, kernel: int) -> None:
    """Add bytes to those that are held, ascending, unless their neighbours reach into them."""
    at = bisect_left(held, mine)
    for start, end, other in held[max(0, at - 1) : at + 1]:
        apart = end <= mine[0] or mine[1] <= start
        names = f"'{plan.stays[mine[2]].tensor}' and '{plan.stays[other].tensor}'"
        require(apart, Fault.OVERLAP, f"{names} share bytes from kernel {kernel} on")
    insort(held, mine)
