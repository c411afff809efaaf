"""From the best plan to one that can have addresses: what does not fit together is placed anew, or excluded."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence

import pyomo.core as pyo

from autotm.model.graph import Tier
from autotm.model.plan import Move, Stay
from autotm.solve.formulation import Formulation, Variable, kept_copied, linear, lookup
from autotm.solve.highs import Session
from autotm.solve.local_search import refine
from autotm.solve.options import Addresses, Packing
from autotm.solve.plans import Member, PlanBuilder, holds
from autotm.solve.residencies import Residency, all_slow, fast_spans, stays_and_moves
from autotm.solve.search import Search, search_again

# A plan that can have addresses from one that cannot: what finds no address is placed anew, around the rest.

_ORDERS = 6
"""Orders in which stays that find no address are placed anew, from each packing, as far as there is time."""


_RESIDENCIES = 8
"""Residencies of a flow that are tried before it is slow for life."""


def spill(
    builder: PlanBuilder, candidates: Iterable[Addresses], seed: int, deadline_s: float, end_s: float = math.inf
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
            way = spill_around(builder, addresses, number, seed)
            if way is not None and (found is None or way.builder.cost_us < found.builder.cost_us):
                found = way
    return found


def _kept(candidates: Iterable[Addresses], each: list[Addresses]) -> Iterator[Addresses]:
    for addresses in candidates:
        each.append(addresses)
        yield addresses


def spill_around(builder: PlanBuilder, addresses: Addresses, number: int, seed: int) -> Spilled | None:
    """The plan in which flows whose stays are left out have others that find addresses, in the order of some number.

    None where one finds no place.
    """
    by_name = {flow.tensor: index for index, flow in enumerate(builder.flows)}
    names = dict.fromkeys(stay.tensor for stay in addresses.left_out)
    chosen = [by_name[name] for name in names if name in by_name]
    if len(chosen) < len(names):
        return None
    random.Random(seed + number).shuffle(chosen)  # noqa: S311 - no secret
    if number == 0:
        chosen.sort(key=lambda index: (-builder.worth[index], index))
    spilled = Spilled(builder.copy(), addresses.copy())
    return spilled if spilled.replace(chosen) else None


class Spilled:
    """A plan all of whose stays have addresses.

    Attributes:
        builder: the plan.
        addresses: of its stays; workspaces that change with their kernel's implementation may still need one.
    """

    def __init__(self, builder: PlanBuilder, addresses: Addresses) -> None:
        self.builder = builder
        self.addresses = addresses

    def exchange(self, group: Sequence[int]) -> bool:
        """Replace the flows of a group in this order; undone and `False` unless all find places and that is better."""
        before, entries = self.builder.marked(group)
        addresses, rank = self.addresses.copy(), self.builder.rank(group, entries)
        if self.replace(group) and self.builder.rank(group, entries) < rank:
            return True
        self.builder.undo(before, entries)
        self.addresses = addresses
        return False

    def replace(self, group: Sequence[int]) -> bool:
        """Take flows out, and give each the cheapest residency whose stays find addresses; whether all found one.

        Of a residency that finds none, that without asynchronous moves comes next, then some without what found none,
        and last slow memory for life.
        """
        builder, conflicts = self.builder, len(self.builder.conflicts)
        for index in group:
            for stay in self._stays(index, builder.residencies[index]):
                self.addresses.remove(stay)
            builder.remove(index)
        placed = [self._place(index) for index in group]
        builder.conflicts.forget(conflicts)
        return all(placed)

    def _place(self, index: int) -> bool:
        """Give a flow that has none a residency; whether its stays have addresses."""
        builder, flow = self.builder, self.builder.flows[index]
        for stay in self._without_hole(index):
            builder.conflicts.add([stay])
        for _ in range(_RESIDENCIES):
            residency = builder.best(index)
            failed = self._put(index, residency)
            if failed is not None and self._put(index, blocking := residency.beside(None, ())) is None:
                failed, residency = None, blocking
            if failed is None:
                builder.insert(index, residency)
                return builder.residencies[index] == residency
            builder.conflicts.add([failed])
        builder.insert(index, builder.best(index) if any(flow.must) else all_slow(flow))
        return not any(flow.must)

    def _without_hole(self, index: int) -> Iterator[Stay]:
        """Stays at a gadget, or at two and over the gap between, for which there is no hole."""
        flow = self.builder.flows[index]
        for k in range(len(flow)):
            for last in (k, k + 1):
                if last < len(flow):
                    stay = Stay(flow.tensor, Tier.FAST, flow.starts[k], flow.stops[last])
                    if not self.addresses.has_hole(stay, flow.size_bytes):
                        yield stay

    def _put(self, index: int, residency: Residency) -> Stay | None:
        """Put all stays of a residency; the one that finds no address, in which case none of them is put."""
        stays = self._stays(index, residency)
        for n, stay in enumerate(stays):
            if not self.addresses.put(stay, self.builder.flows[index].size_bytes):
                for other in stays[:n]:
                    self.addresses.remove(other)
                return stay
        return None

    def _stays(self, index: int, residency: Residency) -> list[Stay]:
        flow = self.builder.flows[index]
        return [Stay(flow.tensor, Tier.FAST, start, end) for start, end in fast_spans(flow, residency)]


# Conflicts as rows of the integer program.


def not_all_fast(made: Formulation, members: Sequence[Member], decided: dict[int, Residency]) -> pyo.Block | None:
    """(F11) Of what a conflict's members hold, gadgets and gaps, at least one is given up.

    Flows without variables do what is `decided`. None where nothing is left to choose, or nothing forbids it.
    """
    terms: list[tuple[Variable, ...]] = []
    for member in members:
        if member[0] in made.flows:
            terms += _held(made, member)
        elif not holds(decided[member[0]], member):
            return None
    if not terms:
        return None
    block = pyo.Block(concrete=True)
    pairs = [(variable, 1.0) for term in terms for variable in term]
    block.not_all_fast = pyo.Constraint(expr=(None, linear(pairs), len(terms) - 1.0))
    name = f"conflict_{sum(1 for _ in made.model.component_objects(pyo.Block))}"
    made.model.add_component(name, block)
    return block


def _held(made: Formulation, member: Member) -> list[tuple[Variable, ...]]:
    """Per gap, the variables that sum up to staying fast over it; of a member at one gadget those of the gadget."""
    index, first, last = member
    model = made.model
    if first == last:
        found = [(lookup(model.a, index, first), lookup(model.b, index, first))]
    else:
        found = [(lookup(model.a, index, k + 1), kept_copied(made, index, k)) for k in range(first, last)]
    return [tuple(variable for variable in sums if variable is not None) for sums in found]


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
        best = min((found for found in (best, spilled) if found), key=lambda found: found.builder.cost_us, default=None)
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
    search.reserve_us = spilled.builder.cost_us - search.best.cost_us
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
    problem, builder = search.problem, search.best
    stays, _, implementations = plan_of(builder)
    candidates = packing.addresses(stays, implementations, problem.limit_bytes)
    now = time.perf_counter()
    deadline = min(end_s, now + _PLACING * (now - search.started_s))
    spilled = spill(builder, candidates, problem.options.seed, deadline, end_s)
    if spilled is not None:
        count, cost_us = len(spilled.addresses.left_out), spilled.builder.cost_us
        refine(spilled.builder, search.priced, deadline, search.target_us, problem.options.seed, spilled.exchange)
        found_us = cost_us, spilled.builder.cost_us
        log.info("%d stays placed anew: %.6g us, improved %.6g us", count, *(problem.base_us + us for us in found_us))
    return spilled


def _take(search: Search, packing: Packing, spilled: Spilled | None, gap: float) -> bool:
    """Take over a plan all of whose stays have addresses if it is within the gap."""
    if spilled is None:
        return False
    problem, builder = search.problem, spilled.builder
    objective_us = problem.base_us + builder.cost_us
    if objective_us - search.bound_us > gap * objective_us:
        return False
    stays, _, implementations = plan_of(builder)
    if not packing.settle(stays, implementations, problem.limit_bytes, spilled.addresses):
        return False
    search.builder, search.objective_us = builder, objective_us
    return True


def plan_of(builder: PlanBuilder) -> tuple[list[Stay], list[Move], dict[int, str]]:
    """Stays, moves and implementations of what was chosen."""
    stays: list[Stay] = []
    moves: list[Move] = []
    implementations = {}
    for index, flow in enumerate(builder.flows):
        tensor_stays, tensor_moves = stays_and_moves(flow, builder.residencies[index])
        stays += tensor_stays
        moves += tensor_moves
    for table, entry in zip(builder.tables, builder.entries, strict=True):
        variant = table.variants[int(table.variant[entry])]
        span = (table.kernel, table.kernel + 1)
        stays += [Stay(name, Tier.FAST, *span) for name in variant.fast_workspaces]
        stays += [Stay(name, Tier.SLOW, *span) for name in variant.slow_workspaces]
        implementations[table.kernel] = variant.implementation
    return stays, moves, implementations
