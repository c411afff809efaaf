"""A plan that can have addresses from one that cannot: what finds no address is placed anew, around the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autotm.model.plan import Stay
from autotm.model.tier import Tier
from autotm.solve.journey import Journey, fast_spans
from autotm.solve.packing import Addresses
from autotm.solve.repair import Repair

_ORDERS = 6
"""Orders in which stays that find no address are placed anew, from each packing; milliseconds each."""


@dataclass(frozen=True)
class Spilled:
    """What was done to a plan whose stays did not all have addresses.

    Attributes:
        addresses: what the stays of its tensors have now.
        undo: takes all of it back.
    """

    addresses: Addresses
    undo: Callable[[], None]


def spill(repair: Repair, candidates: Iterable[Addresses], seed: int) -> Spilled | None:
    """Change the plan as `spill_around` does by that of several addresses, in several orders, that costs least.

    None, with the plan as it was, where no way was found.
    """
    ways: list[tuple[float, Addresses, int]] = []
    for addresses in candidates:
        for number in range(_ORDERS):
            spilled = spill_around(repair, addresses.copy(), number, seed)
            if spilled is not None:
                ways.append((repair.cost_us, addresses, number))
                spilled.undo()
    if not ways:
        return None
    _, addresses, number = min(ways, key=lambda way: way[0])
    return spill_around(repair, addresses, number, seed)


def spill_around(repair: Repair, addresses: Addresses, number: int, seed: int) -> Spilled | None:
    """Give the flows whose stays are left out journeys whose stays find addresses, in the order of some number.

    Each gets its cheapest journey first, then that without asynchronous moves, then those that avoid what found no
    address before. None, with everything as it was, where one finds no place.
    """
    by_name = {flow.tensor: index for index, flow in enumerate(repair.flows)}
    names = dict.fromkeys(stay.tensor for stay in addresses.left_out)
    chosen = [by_name[name] for name in names if name in by_name]
    random.Random(seed + number).shuffle(chosen)  # noqa: S311 - no secret
    if number == 0:
        chosen.sort(key=lambda index: (-repair.worth[index], index))
    conflicts = len(repair.conflicts)
    before = repair.marked(chosen)
    for index in chosen:
        for stay in _stays(repair, index, repair.journeys[index]):
            addresses.remove(stay)
        repair.remove(index)
    placed = [_place(repair, index, addresses) for index in chosen]
    repair.conflicts.forget(conflicts)
    if len(chosen) < len(names) or not all(placed):
        repair.undo(*before)
        return None
    return Spilled(addresses, lambda: repair.undo(*before))


def _place(repair: Repair, index: int, addresses: Addresses) -> bool:
    """Give a flow a journey; whether its stays have addresses."""
    tried: set[Journey] = set()
    while True:
        journey = repair.best(index)
        if journey in tried:
            repair.insert(index, journey)
            return False
        tried.add(journey)
        failed = _put(repair, index, journey, addresses)
        if failed is not None and _put(repair, index, blocking := journey.beside(None, ()), addresses) is None:
            failed, journey = None, blocking
        if failed is None:
            repair.insert(index, journey)
            return repair.journeys[index] == journey
        repair.conflicts.add([failed])


def _put(repair: Repair, index: int, journey: Journey, addresses: Addresses) -> Stay | None:
    """Put all stays of a journey; the one that finds no address, in which case none of them is put."""
    stays = _stays(repair, index, journey)
    for n, stay in enumerate(stays):
        if not addresses.put(stay, repair.flows[index].size_bytes):
            for other in stays[:n]:
                addresses.remove(other)
            return stay
    return None


def _stays(repair: Repair, index: int, journey: Journey) -> list[Stay]:
    flow = repair.flows[index]
    return [Stay(flow.tensor, Tier.DRAM, start, end) for start, end in fast_spans(flow, journey)]
