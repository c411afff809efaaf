"""The cheapest residency of one tensor when fast memory has a price, by dynamic programming over its gadgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotm.solve.problem.flow import Flow
from autotm.solve.problem.residency import Residency, by_blocking_moves
from autotm.solve.problem.window import Window

_BORN_FAST, _COPIED, _SLOW = range(3)
"""In fast memory since birth; in fast memory with a valid slow copy; in slow memory only."""


Way = tuple[float, Window | None]
"""The cheapest way of a copy over a gap at some prices: what it costs, and its window; None if it is blocking."""


@dataclass(frozen=True)
class Charges:
    """What a flow is charged at some prices of memory and engines; infinity forbids.

    Attributes:
        slow_us, fast_us: at each gadget.
        between_us: for staying fast over each gap.
        out, back: the cheapest way to copy the tensor to slow, to fast memory over each gap.
    """

    slow_us: Sequence[float]
    fast_us: Sequence[float]
    between_us: Sequence[float]
    out: Sequence[Way]
    back: Sequence[Way]

    @classmethod
    def blocking(
        cls, flow: Flow, slow_us: Sequence[float], fast_us: Sequence[float], between_us: Sequence[float]
    ) -> Charges:
        """With blocking copies only."""
        gaps = len(flow) - 1
        return cls(slow_us, fast_us, between_us, [(flow.write_us, None)] * gaps, [(flow.read_us, None)] * gaps)


def best_residency(flow: Flow, charges: Charges) -> Residency:
    """The cheapest residency; where the flow's own rules leave no other choice, some finite path must exist."""
    costs, ways = _forward(flow, charges)
    state = min(range(3), key=costs.__getitem__)
    if costs[state] == math.inf:
        raise ValueError(f"tensor '{flow.tensor}' has no residency at these prices")
    return _with_windows(_trace(ways, state), charges)


def best_value(flow: Flow, charges: Charges) -> float:
    """What the cheapest residency costs, prices included."""
    return min(_forward(flow, charges)[0])


def _with_windows(residency: Residency, charges: Charges) -> Residency:
    left = residency.first_leave
    out = charges.out[left - 1][1] if 0 < left < len(residency.fast) else None
    windows = ((k, charges.back[k - 1][1]) for k in residency.reads())
    back = tuple((k, window) for k, window in windows if window is not None)
    return residency.beside(out, back)


def _forward(flow: Flow, charges: Charges) -> tuple[list[float], list[list[tuple[int, bool]]]]:
    ways: list[list[tuple[int, bool]]] = []
    first_fast, first_slow = charges.fast_us[0], charges.slow_us[0]
    costs = [first_fast if flow.may[0] else math.inf, math.inf, math.inf if flow.must[0] else first_slow]
    for k in range(1, len(flow)):
        costs, choice = _step(flow, k, costs, charges)
        ways.append(choice)
    return costs, ways


def _step(flow: Flow, k: int, costs: list[float], charges: Charges) -> tuple[list[float], list[tuple[int, bool]]]:
    """Costs of the three states at gadget k, and for each the state before and whether the gap was spent fast."""
    born, copied, slow = costs
    at = charges.fast_us[k] if flow.may[k] else math.inf
    stay = charges.between_us[k - 1] if flow.may_between[k - 1] else math.inf
    read = charges.back[k - 1][0] if flow.may_read[k] else math.inf
    write = born + charges.out[k - 1][0]
    slow_at = math.inf if flow.must[k] else charges.slow_us[k]
    to_copied = (
        (copied + stay, (_COPIED, True)),
        (copied + read, (_COPIED, False)),
        (slow + read, (_SLOW, False)),
        (write + read, (_BORN_FAST, False)),
    )
    to_slow = ((slow, (_SLOW, False)), (copied, (_COPIED, False)), (write, (_BORN_FAST, False)))
    copied_cost, copied_from = min(to_copied)
    slow_cost, slow_from = min(to_slow)
    return [born + stay + at, copied_cost + at, slow_cost + slow_at], [(_BORN_FAST, True), copied_from, slow_from]


def _trace(ways: list[list[tuple[int, bool]]], state: int) -> Residency:
    fast, between = [state != _SLOW], []
    for choice in reversed(ways):
        state, stayed = choice[state]
        between.append(stayed)
        fast.append(state != _SLOW)
    return by_blocking_moves(tuple(reversed(fast)), tuple(reversed(between)))
