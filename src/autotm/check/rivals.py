"""What others do on a GPU: plans that are held to no limit, and copies that the next kernel waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotm.check.fault import Fault, require
from autotm.model.measurement import Links, Profile
from autotm.model.plan import Move
from autotm.model.step import Graph, Tier

UNLIMITED = frozenset({"managed-memory", "lru-paging", "swap-all", "recompute"})
"""Optimizers whose plans may exceed the limit. Such a program does not run, but for the managed one."""

REPEATING = frozenset({"recompute"})
"""Optimizers that may call kernels again."""

WAITING = frozenset({"swap-all"})
"""Optimizers whose asynchronous moves are beside one kernel each, and the next one waits for them."""


def check_beside_one_kernel(moves: Sequence[Move]) -> None:
    """No asynchronous move is beside more than one kernel.

    Raises:
        FaultError: one is.
    """
    for move in moves:
        alone = move.since is None or move.before == move.since + 1
        where = f"'{move.tensor}' beside kernels [{move.since}, {move.before}), of which the second waits for it"
        require(alone, Fault.WINDOW, where)


def waits_us(graph: Graph, profile: Profile, links: Links, moves: Sequence[Move]) -> float:
    """How much longer than their kernels the copies beside these take, summed over kernels; both directions at once.

    `graph` is the step with the implementations that run.
    """
    waits = []
    for index, kernel in enumerate(graph.kernels):
        beside = [move for move in moves if move.since == index]
        longest_us = max(
            math.fsum(
                links.transfer_us(tier, graph.by_name[move.tensor].size_bytes)
                for move in beside
                if move.destination is tier
            )
            for tier in Tier
        )
        waits.append(max(0.0, longest_us - profile.base_us(kernel)))
    return math.fsum(waits)
