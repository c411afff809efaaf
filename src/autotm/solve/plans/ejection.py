"""Local search: a tensor that pays for slow memory takes the place of one that is fast."""

from __future__ import annotations

from collections import defaultdict

from autotm.solve.plans.repair import Repair
from autotm.solve.problem import Choices, Residency, fast_spans

_TRIALS = 4000
"""Exchanges tried in all; about a second. Counted, not timed, so that results repeat."""

_GADGETS = 2
_RIVALS = 6
"""Exchanges tried for one tensor: at so many gadgets, with so many rivals each."""


def eject(repair: Repair) -> None:
    """Exchange pairs of flows while that helps; never makes the plan slower."""
    holders = _Holders(repair)
    trials = _TRIALS
    improved = True
    while improved and trials > 0:
        improved = False
        for index in _by_cost(repair):
            for rival in _rivals(repair, holders, index):
                trials -= 1
                before = {flow: repair.residencies[flow] for flow in (index, rival)}
                if repair.exchange((index, rival)):
                    holders.update(before)
                    improved = True
                    break
            if trials <= 0:
                return


class _Holders:
    """The flows that are fast during each kernel."""

    def __init__(self, repair: Repair) -> None:
        self._repair = repair
        self._at: dict[int, set[int]] = defaultdict(set)
        for index, residency in repair.residencies.items():
            for kernel in self._kernels(index, residency):
                self._at[kernel].add(index)

    def at(self, kernel: int) -> set[int]:
        """Indices of the flows that are fast during a kernel."""
        return self._at[kernel]

    def update(self, before: dict[int, Residency]) -> None:
        """Follow flows from their residencies before to those they have now."""
        for index, residency in before.items():
            for kernel in self._kernels(index, residency):
                self._at[kernel].discard(index)
            for kernel in self._kernels(index, self._repair.residencies[index]):
                self._at[kernel].add(index)

    def _kernels(self, index: int, residency: Residency) -> list[int]:
        spans = fast_spans(self._repair.flows[index], residency)
        return [kernel for start, end in spans for kernel in range(start, end)]


def _by_cost(repair: Repair) -> list[int]:
    """Flows that are slow somewhere where that costs, the dearest first."""
    cost_us = {index: sum(_slow_us(repair.choices, index, repair.residencies[index])) for index in repair.residencies}
    return sorted((index for index, us in cost_us.items() if us > 0), key=lambda index: (-cost_us[index], index))


def _slow_us(choices: Choices, index: int, residency: Residency) -> list[float]:
    """What each gadget may save by being fast."""
    most_us = choices.most_us[index]
    return [0.0 if fast else us for us, fast in zip(most_us, residency.fast, strict=True)]


def _rivals(repair: Repair, holders: _Holders, index: int) -> list[int]:
    """Flows whose place would admit this one at a gadget where it pays most, the least valuable first."""
    flow = repair.flows[index]
    slow_us = _slow_us(repair.choices, index, repair.residencies[index])
    found: dict[int, None] = {}
    for k in sorted(range(len(flow)), key=lambda k: -slow_us[k])[:_GADGETS]:
        if slow_us[k] <= 0 or not flow.may[k]:
            continue
        start, stop = flow.starts[k], flow.stops[k]
        tightest = start + int(repair.left[start:stop].argmin())
        missing = flow.size_bytes - int(repair.left[tightest])
        large = [
            other for other in holders.at(tightest) if repair.flows[other].size_bytes >= missing and other != index
        ]
        found.update(dict.fromkeys(sorted(large, key=lambda other: (repair.worth[other], other))[:_RIVALS]))
    return list(found)
