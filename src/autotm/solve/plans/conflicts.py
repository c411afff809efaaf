"""Stays in fast memory that were found not to fit together: not all of them can be, whatever room their bytes leave.

Whoever packs finds them (`packing.py`); a search keeps them and never proposes a plan with all of one of them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autotm.model.plan import Stay
from autotm.model.step import Tier
from autotm.solve.problem import Charges, Flow, Residency, best_residency, best_value

Member = tuple[int, int, int]
"""A flow that is fast at gadgets [first, last] and over the gaps between: (flow, first, last)."""


class Conflicts:
    """Sets of members of which no plan has all."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self._flows = flows
        self._by_name = {flow.tensor: index for index, flow in enumerate(flows)}
        self._sets: list[tuple[Member, ...]] = []
        self._of: dict[int, list[int]] = defaultdict(list)

    def add(self, stays: Iterable[Stay]) -> tuple[Member, ...]:
        """Take over a conflict; workspaces, which come with their kernels, are no members.

        Returns:
            its members; nothing is taken over where there are none.
        """
        fast = [stay for stay in stays if stay.tier is Tier.DRAM and stay.tensor in self._by_name]
        members = tuple(self._member(stay) for stay in fast)
        if members:
            for index, _, _ in members:
                self._of[index].append(len(self._sets))
            self._sets.append(members)
        return members

    def __len__(self) -> int:
        return len(self._sets)

    def forget(self, count: int) -> None:
        """Keep the first `count` sets only."""
        del self._sets[count:]
        for index, numbers in self._of.items():
            self._of[index] = [number for number in numbers if number < count]

    def allow(self, index: int, residency: Residency, others: Mapping[int, Residency]) -> bool:
        """Whether a flow's residency completes no conflict beside the residencies that the others have."""
        return not any(holds(residency, member) for member in self._left_to(index, others))

    def best(self, index: int, charges: Charges, others: Mapping[int, Residency]) -> Residency:
        """The flow's cheapest residency that completes no conflict; where it has to be fast, the cheapest."""
        flow = self._flows[index]
        residency = best_residency(flow, charges)
        for member in self._left_to(index, others):
            if holds(residency, member):
                ways = [way for way in _without(flow, charges, member) if best_value(flow, way) < float("inf")]
                charges = min(ways, key=lambda way: best_value(flow, way), default=charges)
                residency = best_residency(flow, charges)
        return residency

    def _left_to(self, index: int, others: Mapping[int, Residency]) -> list[Member]:
        """What the flow must not do, since the others do their parts of a conflict."""
        found = []
        for number in self._of.get(index, ()):
            mine = [member for member in self._sets[number] if member[0] == index]
            rest = [member for member in self._sets[number] if member[0] != index]
            if all(member[0] in others and holds(others[member[0]], member) for member in rest):
                found += mine[:1]
        return found

    def _member(self, stay: Stay) -> Member:
        index = self._by_name[stay.tensor]
        flow = self._flows[index]
        inside = [k for k in range(len(flow)) if stay.start <= flow.starts[k] and flow.stops[k] <= stay.end]
        return index, inside[0], inside[-1]


def holds(residency: Residency, member: Member) -> bool:
    """Whether the residency is fast wherever the member says."""
    _, first, last = member
    return all(residency.fast[first : last + 1]) and all(residency.between[first:last])


def _without(flow: Flow, charges: Charges, member: Member) -> list[Charges]:
    """Charges that forbid one part of the member each: fast memory at a gadget, or over a gap."""
    _, first, last = member
    found = [replace(charges, fast_us=_barred(charges.fast_us, k)) for k in range(first, last + 1) if not flow.must[k]]
    return found + [replace(charges, between_us=_barred(charges.between_us, k)) for k in range(first, last)]


def _barred(costs: Sequence[float], k: int) -> list[float]:
    return [float("inf") if number == k else cost for number, cost in enumerate(costs)]
