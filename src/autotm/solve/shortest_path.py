"""The cheapest journey of one tensor when fast memory has a price, by dynamic programming over its gadgets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotm.solve.flow import Flow
from autotm.solve.journey import Journey

_BORN_FAST, _COPIED, _SLOW = range(3)
"""In fast memory since birth; in fast memory with a valid slow copy; in slow memory only."""


def best_journey(
    flow: Flow, slow_us: Sequence[float], fast_us: Sequence[float], between_us: Sequence[float]
) -> Journey:
    """The cheapest journey when gadget k costs `slow_us[k]` or `fast_us[k]`, and the gap after it `between_us[k]`.

    Infinite prices forbid. Where the flow's own rules leave no other choice, some finite path must exist.
    """
    costs, ways = _forward(flow, slow_us, fast_us, between_us)
    state = min(range(3), key=costs.__getitem__)
    if costs[state] == math.inf:
        raise ValueError(f"tensor '{flow.tensor}' has no journey at these prices")
    return _trace(ways, state)


def best_value(flow: Flow, slow_us: Sequence[float], fast_us: Sequence[float], between_us: Sequence[float]) -> float:
    """What the cheapest journey costs, prices included."""
    return min(_forward(flow, slow_us, fast_us, between_us)[0])


def _forward(
    flow: Flow, slow_us: Sequence[float], fast_us: Sequence[float], between_us: Sequence[float]
) -> tuple[list[float], list[list[tuple[int, bool]]]]:
    ways: list[list[tuple[int, bool]]] = []
    costs = [fast_us[0] if flow.may[0] else math.inf, math.inf, math.inf if flow.must[0] else slow_us[0]]
    for k in range(1, len(flow)):
        costs, choice = _step(flow, k, costs, slow_us[k], fast_us[k], between_us[k - 1])
        ways.append(choice)
    return costs, ways


def _step(
    flow: Flow, k: int, costs: list[float], slow_us: float, fast_us: float, between_us: float
) -> tuple[list[float], list[tuple[int, bool]]]:
    """Costs of the three states at gadget k, and for each the state before and whether the gap was spent fast."""
    born, copied, slow = costs
    at = fast_us if flow.may[k] else math.inf
    stay = between_us if flow.may_between[k - 1] else math.inf
    read = flow.read_us if flow.may_read[k] else math.inf
    write = born + flow.write_us
    slow_at = math.inf if flow.must[k] else slow_us
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


def _trace(ways: list[list[tuple[int, bool]]], state: int) -> Journey:
    fast, between = [state != _SLOW], []
    for choice in reversed(ways):
        state, stayed = choice[state]
        between.append(stayed)
        fast.append(state != _SLOW)
    return Journey(tuple(reversed(fast)), tuple(reversed(between)))
