"""From the best plan of a search to one that can have addresses: what does not fit together is given up."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from autotm.model.plan import Move, Stay
from autotm.model.step import Tier
from autotm.solve.plans import Member, Repair, Spilled, refine, spill
from autotm.solve.problem import Packing, stays_and_moves
from autotm.solve.program import Formulation, Session
from autotm.solve.search.conflict_rows import not_all_fast
from autotm.solve.search.near import search_again
from autotm.solve.search.search import Search

log = logging.getLogger(__name__)

_PLACING, _LOCALLY = 0.15, 0.1
"""Time for placing stays anew and for improving that, as a share of what the search has taken; and for improving the
plan before, of what is left for a better one."""
_NEARLY = 1.5
"""Times the asked gap at which a plan that fits is worth more than the time that a smaller limit would take."""
_SHARE, _LEAST_S = 2.5, 2.0
"""Time for this as a share of what the search has taken, and at least; after that a smaller limit is the better way."""


def settle(search: Search, made: Formulation, session: Session | None, end_s: float = math.inf) -> None:
    """Change the best plan until it fits, as long as that is worth it.

    Stays that find no address are placed anew around the others. Where that makes the gap wider than asked, a plan is
    searched that is better by what addresses cost. Then sets of stays that do not fit together are excluded, and if
    giving up one of a set costs as much, the set becomes a row and the program is solved on from where it was. The
    bound stays that of the program without such rows: it holds for every plan within the limit. Once
    `time.perf_counter` has reached `end_s`, the next plan that fits is taken, whatever its gap.
    """
    packing, asked = search.problem.packing, search.problem.options.gap
    if packing is None or search.problem.limit.is_unlimited:
        return
    packing.end_s, now = end_s, time.perf_counter()
    deadline, blocks, best = min(end_s, now + max(_LEAST_S, _SHARE * (now - search.started_s))), [], None
    while not _fits(search, packing):
        spilled = _spilled(search, packing, end_s)
        best = min((found for found in (best, spilled) if found), key=lambda found: found.repair.cost_us, default=None)
        if _take(search, packing, spilled, asked):
            break
        if spilled and _find_better(search, spilled, made, session, deadline):
            continue
        members = _exclude(search, packing) if time.perf_counter() < deadline else ()
        if not members:
            is_late = time.perf_counter() >= end_s
            search.timed_out |= is_late
            _take(search, packing, best, math.inf if is_late else _NEARLY * asked)
            break
        if session is None or session.is_lost or search.is_done:
            continue
        block = not_all_fast(made, members, search.reduced.decided)
        if block is not None:
            blocks.append(block)
            session.extend(block)
            search_again(search, made, session, deadline)
    for block in blocks:
        made.model.del_component(block)


def _fits(search: Search, packing: Packing) -> bool:
    stays, _, implementations = plan_of(search.best)
    return packing.fits(stays, implementations, search.problem.limit_bytes)


def _find_better(search: Search, spilled: Spilled, made: Formulation, session: Session | None, deadline: float) -> bool:
    """Search a plan that is close enough even if addresses cost it as much as the last one; whether one was found."""
    now = time.perf_counter()
    if now >= deadline:
        return False
    search.reserve_us = spilled.repair.cost_us - search.best.cost_us
    search.refine(now + _LOCALLY * (deadline - now))
    if not search.is_done and session is not None and not session.is_lost:
        search_again(search, made, session, deadline)
    is_found, search.reserve_us = search.is_done, 0.0
    return is_found


def _exclude(search: Search, packing: Packing) -> Sequence[Member]:
    """Give up one of a set of stays that do not fit together; the set's members, none if that changed nothing."""
    stays, _, implementations = plan_of(search.best)
    conflict = packing.conflict(stays, implementations, search.problem.limit_bytes)
    before = dict(search.best.residencies)
    members = search.exclude(conflict)
    if all(search.best.residencies[index] == before[index] for index, _, _ in members):
        return ()
    log.info("%d stays do not fit together: %.6g us without one of them", len(conflict), search.objective_us)
    return members


def _spilled(search: Search, packing: Packing, end_s: float) -> Spilled | None:
    """The best plan with what finds no address placed anew, improved for a while if it is not as close as asked."""
    problem, repair = search.problem, search.best
    stays, _, implementations = plan_of(repair)
    candidates = packing.addresses(stays, implementations, problem.limit_bytes)
    now = time.perf_counter()
    deadline = min(end_s, now + _PLACING * (now - search.started_s))
    spilled = spill(repair, candidates, problem.options.seed, deadline, end_s)
    if spilled is not None:
        count, cost_us = len(spilled.addresses.left_out), spilled.repair.cost_us
        refine(spilled.repair, search.priced, deadline, search.target_us, problem.options.seed, spilled.exchange)
        found_us = cost_us, spilled.repair.cost_us
        log.info("%d stays placed anew: %.6g us, improved %.6g us", count, *(problem.base_us + us for us in found_us))
    return spilled


def _take(search: Search, packing: Packing, spilled: Spilled | None, gap: float) -> bool:
    """Take over a plan all of whose stays have addresses if it is within the gap."""
    if spilled is None:
        return False
    problem, repair = search.problem, spilled.repair
    objective_us = problem.base_us + repair.cost_us
    if objective_us - search.bound_us > gap * objective_us:
        return False
    stays, _, implementations = plan_of(repair)
    if not packing.settle(stays, implementations, problem.limit_bytes, spilled.addresses):
        return False
    search.repair, search.objective_us = repair, objective_us
    return True


def plan_of(repair: Repair) -> tuple[list[Stay], list[Move], dict[int, str]]:
    """Stays, moves and implementations of what was chosen."""
    stays: list[Stay] = []
    moves: list[Move] = []
    implementations = {}
    for index, flow in enumerate(repair.flows):
        tensor_stays, tensor_moves = stays_and_moves(flow, repair.residencies[index])
        stays += tensor_stays
        moves += tensor_moves
    for table, entry in zip(repair.tables, repair.entries, strict=True):
        way = table.ways[int(table.way[entry])]
        span = (table.kernel, table.kernel + 1)
        stays += [Stay(name, Tier.DRAM, *span) for name in way.fast_workspaces]
        stays += [Stay(name, Tier.PMEM, *span) for name in way.slow_workspaces]
        implementations[table.kernel] = way.implementation
    return stays, moves, implementations
