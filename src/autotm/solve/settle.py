"""From the best plan of a search to one that can have addresses: what does not fit together is given up."""

from __future__ import annotations

import logging
import time

from autotm.model.plan import Move, Stay
from autotm.model.tier import Tier
from autotm.solve.conflict_rows import not_all_fast
from autotm.solve.formulation import Formulation
from autotm.solve.highs import Session
from autotm.solve.journey import stays_and_moves
from autotm.solve.near import search_again
from autotm.solve.repair import Repair
from autotm.solve.search import Search

log = logging.getLogger(__name__)

_SHARE, _LEAST_S = 1.0, 1.0
"""Time for this as a share of what the search has taken, and at least; after that a smaller limit is the better way."""


def settle(search: Search, made: Formulation, session: Session | None) -> None:
    """Exclude sets of stays that do not fit together from the best plan until it fits, as long as that is worth it.

    The bound stays that of the program without such rows: it holds for every plan within the limit. Where giving up
    one of a set leaves the gap wider than asked, the set becomes a row and the program is solved on from where it was.
    """
    packing, limit_bytes = search.problem.packing, search.problem.limit_bytes
    if packing is None or search.problem.limit.is_unlimited:
        return
    now = time.perf_counter()
    deadline, blocks = now + max(_LEAST_S, _SHARE * (now - search.started_s)), []
    while True:
        stays, _, implementations = plan_of(search.best)
        conflict = packing(stays, implementations, limit_bytes)
        if not conflict or time.perf_counter() >= deadline:
            break
        before = dict(search.best.journeys)
        members = search.exclude(conflict)
        if all(search.best.journeys[index] == before[index] for index, _, _ in members):
            break
        log.info("%d stays do not fit together: %.6g us without one of them", len(conflict), search.objective_us)
        if session is None or session.is_lost or search.is_done:
            continue
        block = not_all_fast(made, members, search.reduced.decided)
        if block is not None:
            blocks.append(block)
            session.extend(block)
            search_again(search, made, session, deadline)
    for block in blocks:
        made.model.del_component(block)


def plan_of(repair: Repair) -> tuple[list[Stay], list[Move], dict[int, str]]:
    """Stays, moves and implementations of what was chosen."""
    stays: list[Stay] = []
    moves: list[Move] = []
    implementations = {}
    for index, flow in enumerate(repair.flows):
        tensor_stays, tensor_moves = stays_and_moves(flow, repair.journeys[index])
        stays += tensor_stays
        moves += tensor_moves
    for table, entry in zip(repair.tables, repair.entries, strict=True):
        way = table.ways[int(table.way[entry])]
        span = (table.kernel, table.kernel + 1)
        stays += [Stay(name, Tier.DRAM, *span) for name in way.fast_workspaces]
        stays += [Stay(name, Tier.PMEM, *span) for name in way.slow_workspaces]
        implementations[table.kernel] = way.implementation
    return stays, moves, implementations
