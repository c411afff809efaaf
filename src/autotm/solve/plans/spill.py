"""A plan that can have addresses from one that cannot: what finds no address is placed anew, around the rest."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence

from autotm.model.plan import Stay
from autotm.model.step import Tier
from autotm.solve.plans.repair import Repair
from autotm.solve.problem import Addresses, Residency, all_slow, fast_spans

_ORDERS = 6
"""Orders in which stays that find no address are placed anew, from each packing, as far as there is time."""


_RESIDENCIES = 8
"""Residencies of a flow that are tried before it is slow for life."""


def spill(
    repair: Repair, candidates: Iterable[Addresses], seed: int, deadline_s: float, end_s: float = math.inf
) -> Spilled | None:
    """The cheapest plan of those that `spill_around` makes from several addresses, in several orders; None without.

    One try at least is made from each, whatever the deadline by `time.perf_counter`; beyond the end, from each until
    one is found.
    """
    found = None
    each: list[Addresses] = []
    for number in range(_ORDERS):
        for addresses in each if number else _kept(candidates, each):
            now = time.perf_counter()
            if (number and now >= deadline_s) or (found and now >= end_s):
                return found
            way = spill_around(repair, addresses, number, seed)
            if way is not None and (found is None or way.repair.cost_us < found.repair.cost_us):
                found = way
    return found


def _kept(candidates: Iterable[Addresses], each: list[Addresses]) -> Iterator[Addresses]:
    for addresses in candidates:
        each.append(addresses)
        yield addresses


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
        """Take flows out, and give each the cheapest residency whose stays find addresses; whether all found one.

        Of a residency that finds none, that without asynchronous moves comes next, then some without what found none,
        and last slow memory for life.
        """
        repair, conflicts = self.repair, len(self.repair.conflicts)
        for index in group:
            for stay in self._stays(index, repair.residencies[index]):
                self.addresses.remove(stay)
            repair.remove(index)
        placed = [self._place(index) for index in group]
        repair.conflicts.forget(conflicts)
        return all(placed)

    def _place(self, index: int) -> bool:
        """Give a flow that has none a residency; whether its stays have addresses."""
        repair, flow = self.repair, self.repair.flows[index]
        for stay in self._without_hole(index):
            repair.conflicts.add([stay])
        for _ in range(_RESIDENCIES):
            residency = repair.best(index)
            failed = self._put(index, residency)
            if failed is not None and self._put(index, blocking := residency.beside(None, ())) is None:
                failed, residency = None, blocking
            if failed is None:
                repair.insert(index, residency)
                return repair.residencies[index] == residency
            repair.conflicts.add([failed])
        repair.insert(index, repair.best(index) if any(flow.must) else all_slow(flow))
        return not any(flow.must)

    def _without_hole(self, index: int) -> Iterator[Stay]:
        """Stays at a gadget, or at two and over the gap between, for which there is no hole."""
        flow = self.repair.flows[index]
        for k in range(len(flow)):
            for last in (k, k + 1):
                if last < len(flow):
                    stay = Stay(flow.tensor, Tier.DRAM, flow.starts[k], flow.stops[last])
                    if not self.addresses.has_hole(stay, flow.size_bytes):
                        yield stay

    def _put(self, index: int, residency: Residency) -> Stay | None:
        """Put all stays of a residency; the one that finds no address, in which case none of them is put."""
        stays = self._stays(index, residency)
        for n, stay in enumerate(stays):
            if not self.addresses.put(stay, self.repair.flows[index].size_bytes):
                for other in stays[:n]:
                    self.addresses.remove(other)
                return stay
        return None

    def _stays(self, index: int, residency: Residency) -> list[Stay]:
        flow = self.repair.flows[index]
        return [Stay(flow.tensor, Tier.DRAM, start, end) for start, end in fast_spans(flow, residency)]
