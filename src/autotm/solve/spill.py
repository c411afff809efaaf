"""A plan that can have addresses from one that cannot: what finds no address is placed anew, around the rest."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from autotm.model.plan import Stay
from autotm.model.tier import Tier
from autotm.solve.journey import Journey, fast_spans
from autotm.solve.packing import Addresses
from autotm.solve.repair import Repair

_ORDERS = 6
"""Orders in which stays that find no address are placed anew, from each packing; milliseconds each."""


def spill(repair: Repair, candidates: Iterable[Addresses], seed: int) -> Spilled | None:
    """The cheapest plan of those that `spill_around` makes from several addresses, in several orders; None without."""
    ways = (spill_around(repair, addresses, number, seed) for addresses in candidates for number in range(_ORDERS))
    return min((way for way in ways if way is not None), key=lambda way: way.repair.cost_us, default=None)


def spill_around(repair: Repair, addresses: Addresses, number: int, seed: int) -> Spilled | None:
    """The plan in which flows whose stays are left out have others that find addresses, in the order of some number.

    None where one finds no place.
    """
    by_name = {flow.tensor: index for index, flow in enumerate(repair.flows)}
    names = dict.fromkeys(stay.tensor for stay in addresses.left_out)
    chosen = [by_name[name] for name in names if name in by_name]
    if len(chosen) < len(names):
        return None
    random.Random(seed + number).shuffle(chosen)  # noqa: S311 - no secret
    if number == 0:
        chosen.sort(key=lambda index: (-repair.worth[index], index))
    spilled = Spilled(repair.copy(), addresses.copy())
    return spilled if spilled.replace(chosen) else None


class Spilled:
    """A plan all of whose stays have addresses.

    Attributes:
        repair: the plan.
        addresses: of its stays; workspaces that change with their kernel's implementation may still need one.
    """

    def __init__(self, repair: Repair, addresses: Addresses) -> None:
        self.repair = repair
        self.addresses = addresses

    def exchange(self, group: Sequence[int]) -> bool:
        """Replace the flows of a group in this order; undone and `False` unless all find places and that is better."""
        before, entries = self.repair.marked(group)
        addresses, rank = self.addresses.copy(), self.repair.rank(group, entries)
        if self.replace(group) and self.repair.rank(group, entries) < rank:
            return True
        self.repair.undo(before, entries)
        self.addresses = addresses
        return False

    def replace(self, group: Sequence[int]) -> bool:
        """Take flows out, and give each the cheapest journey whose stays find addresses; whether all found one.

        Of a journey that finds none, that without asynchronous moves comes next, then those without what found none.
        """
        repair, conflicts = self.repair, len(self.repair.conflicts)
        for index in group:
            for stay in self._stays(index, repair.journeys[index]):
                self.addresses.remove(stay)
            repair.remove(index)
        placed = [self._place(index) for index in group]
        repair.conflicts.forget(conflicts)
        return all(placed)

    def _place(self, index: int) -> bool:
        repair = self.repair
        tried: set[Journey] = set()
        while True:
            journey = repair.best(index)
            if journey in tried:
                repair.insert(index, journey)
                return False
            tried.add(journey)
            failed = self._put(index, journey)
            if failed is not None and self._put(index, blocking := journey.beside(None, ())) is None:
                failed, journey = None, blocking
            if failed is None:
                repair.insert(index, journey)
                return repair.journeys[index] == journey
            repair.conflicts.add([failed])

    def _put(self, index: int, journey: Journey) -> Stay | None:
        """Put all stays of a journey; the one that finds no address, in which case none of them is put."""
        stays = self._stays(index, journey)
        for n, stay in enumerate(stays):
            if not self.addresses.put(stay, self.repair.flows[index].size_bytes):
                for other in stays[:n]:
                    self.addresses.remove(other)
                return stay
        return None

    def _stays(self, index: int, journey: Journey) -> list[Stay]:
        flow = self.repair.flows[index]
        return [Stay(flow.tensor, Tier.DRAM, start, end) for start, end in fast_spans(flow, journey)]
