"""Improving a legal plan: take out a few flows that get in each other's way, and insert them in another order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from autotm.solve.repair import Repair

_TOGETHER = (2, 12)
"""Least and most flows taken out at once."""

_PATIENCE = 10
"""Rounds without improvement after which the search ends, as a multiple of the number of flows that matter."""


def refine(
    repair: Repair,
    deadline_s: float,
    target_us: float,
    seed: int,
    exchange: Callable[[Sequence[int]], bool] | None = None,
) -> None:
    """Improve the plan until it costs no more than `target_us`, `time.perf_counter` reaches `deadline_s`, or no more.

    `exchange` takes flows out and inserts them again if that helps; the plan's own, if not given.

    Only flows that could be cheaper than they are, and those that hold memory when they do, are taken out.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    eligible = [index for index, flow in enumerate(repair.flows) if any(flow.out + flow.back) or any(flow.slow_us)]
    if len(eligible) < _TOGETHER[0]:
        return
    idle, cost_us = 0, repair.cost_us
    while idle < _PATIENCE * len(eligible) and cost_us > target_us and time.perf_counter() < deadline_s:
        chosen = _neighbourhood(repair, eligible, draw)
        if (exchange or repair.exchange)(chosen):
            idle, cost_us = 0, repair.cost_us
        else:
            idle += 1


def _neighbourhood(repair: Repair, eligible: list[int], draw: random.Random) -> list[int]:
    """Some flows that are alive at one kernel, in any order."""
    middle = repair.flows[draw.choice(eligible)]
    kernel = draw.randrange(middle.starts[0], middle.stops[-1])
    alive = [index for index in eligible if repair.flows[index].starts[0] <= kernel < repair.flows[index].stops[-1]]
    return draw.sample(alive, min(len(alive), draw.randint(*_TOGETHER)))
