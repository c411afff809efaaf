"""A search's best plan and bound: plans near its relaxation, rows that this breaks, and plans that have addresses."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import pyomo.core as pyo

from autotm.layout.addresses import Addresses, StepPacking
from autotm.model.graph import Tier
from autotm.model.plan import Move, Status, Stay
from autotm.solve.choices import Choices
from autotm.solve.cuts import Cuts
from autotm.solve.formulation import Formulation, Variable, kept_copied, linear, lookup
from autotm.solve.highs import Outcome, Session, Solved
from autotm.solve.local_search import eject, refine
from autotm.solve.plans import Conflicts, Member, PlanBuilder, holds
from autotm.solve.prices import Lagrangian, Priced, Prices
from autotm.solve.problem import Problem
from autotm.solve.reductions import Reduced
from autotm.solve.relaxation import integral, prices_of, variables_of
from autotm.solve.residencies import Residency, all_slow, fast_spans, stays_and_moves

log = logging.getLogger(__name__)

_OPTIMAL_GAP = 1e-9  # a gap of roundings


@dataclass
class Search:
    """The state of the search for one problem: its best plan and its best bound so far.

    Attributes:
        problem, choices: the problem, and all its choices.
        reduced: the choices that the reductions leave open.
        prices: the prices that prove the highest bound.
        bound_us: the bound that these prices prove.
        claimed_us: the highest bound that the solver claims, without a proof.
        builder, objective_us: the best plan, and its time.
        reserve_us: microseconds that finding addresses added to the last plan that was tried; the next plan has to be
            better by as much.
        timed_out: whether the time limit ended the search.
        started_s: when it began, by `time.perf_counter`.
    """

    problem: Problem
    choices: Choices
    reduced: Reduced
    prices: Prices | None = None
    bound_us: float = -math.inf
    claimed_us: float = -math.inf
    builder: PlanBuilder | None = None
    objective_us: float = math.inf
    reserve_us: float = 0.0
    timed_out: bool = False
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def gap(self) -> float:
        """The relative gap between the best plan and the bound, as `Plan` defines it."""
        return (self.objective_us - self.bound_us) / self.objective_us if self.objective_us > 0 else 0.0

    @property
    def best(self) -> PlanBuilder:
        """The best plan."""
        assert self.builder is not None
        return self.builder

    @property
    def is_done(self) -> bool:
        """Whether the gap, with the reserve in the plan's time, is at most the one asked for, or no plan is of use."""
        options, best_us = self.problem.options, self.objective_us + self.reserve_us
        return self.bound_us >= min(best_us * (1 - options.gap), options.most_us)

    @property
    def target_us(self) -> float:
        """The most that a plan's choices may cost if it is within the gap; kernels without a table come on top."""
        return self.bound_us / (1 - self.problem.options.gap) - self.reserve_us - self.problem.base_us

    def update_prices(self, prices: Prices) -> None:
        """Keep prices if they prove more than those before."""
        bound_us = self.problem.base_us + Priced(self.lagrangian, prices).bound_us
        if self.prices is None or bound_us > self.bound_us:
            self.prices, self.bound_us = prices, bound_us

    def try_plan(self, residencies: Mapping[int, Residency], variants: Mapping[int, int]) -> None:
        """Build a legal plan from residencies and variants; keep it if it is the best."""
        kernels = len(self.problem.graph.kernels)
        builder = PlanBuilder(self.reduced.choices, self.problem.limit_bytes, kernels, self.conflicts)
        builder.accept({**self.reduced.decided, **residencies}, variants)
        builder.complete()
        builder.improve()
        self.keep(builder)
        if not self.is_done:
            eject(builder)
            self.keep(builder)

    @cached_property
    def conflicts(self) -> Conflicts:
        """The sets of stays that were found to have no addresses together."""
        return Conflicts(self.reduced.choices.flows)

    def keep(self, builder: PlanBuilder) -> None:
        """Keep a plan if it is the best."""
        objective_us = self.problem.base_us + builder.cost_us
        if objective_us < self.objective_us:
            self.builder, self.objective_us = builder, objective_us

    def refine(self, deadline_s: float, pays_s: float = math.inf) -> None:
        """Improve the best plan until it is close enough, or hardly improves, or the clock reaches `deadline_s`.

        The clock is `time.perf_counter`; `pays_s` is how long it may take to improve.
        """
        if self.is_done:
            return
        refine(self.best, self.priced, deadline_s, self.target_us, self.problem.options.seed, pays_s=pays_s)
        self.objective_us = self.problem.base_us + self.best.cost_us

    @cached_property
    def lagrangian(self) -> Lagrangian:
        """The Lagrangian relaxation of the problem, which turns prices into a bound."""
        return Lagrangian(self.choices, self.problem.limit_bytes, len(self.problem.graph.kernels))

    @property
    def priced(self) -> Priced:
        """The bound that the best prices prove, as a sum of terms."""
        assert self.prices is not None
        return Priced(self.lagrangian, self.prices)

    @property
    def status(self) -> Status:
        """How the search ended."""
        if self.gap <= _OPTIMAL_GAP:
            return Status.OPTIMAL
        if self.gap <= self.problem.options.gap:
            return Status.WITHIN_GAP
        return Status.TIME_LIMIT if self.timed_out else Status.ABOVE_GAP


# Plans near a relaxation: its integral part, and what HiGHS makes of the rest.

SOLVER_SHARE = 0.9
"""Part of the asked gap that the solver may use up; the rest absorbs rounding and re-pricing."""
_NEAR_SHARE = 0.1
"""The same where most is decided already: the best of what is left counts, until the whole plan is close enough."""


def decide_fractional(search: Search, ilp: Formulation, session: Session, deadline: float) -> bool:
    """Let HiGHS decide the tensors that the relaxation left fractional, the others staying where it put them.

    Berthold's RENS (Mathematical Programming Computation, 2014) without rounding bounds: the bound of HiGHS holds for
    these few tensors only, so only its plan is taken. HiGHS is asked again with rows for the engines that cannot keep
    up with its plan. Returns whether it ended in time.
    """
    gap = search.problem.options.gap
    enough = search.bound_us / (1 - SOLVER_SHARE * gap) / ilp.us_per_unit
    with session.held(variables_of(ilp, integral(ilp)[0])):
        while True:
            left_s = deadline - time.perf_counter()
            solved = session.search(left_s, _NEAR_SHARE * gap, warm=False, enough=enough)
            if solved.has_solution:
                search.try_plan(*integral(ilp))
            if solved.outcome is not Outcome.CONVERGED:
                return False
            if search.is_done or (block := ilp.demand.add_broken()) is None:
                return True
            session.extend(block)


def search_again(search: Search, ilp: Formulation, session: Session, deadline: float) -> None:
    """Relax the program, which has got a row since, starting from its last solution, and let HiGHS search it.

    The bound of HiGHS holds only for plans that keep the new rows, so only its plans are taken.
    """
    if session.relax(deadline - time.perf_counter()).outcome is not Outcome.CONVERGED:
        return
    if not ilp.has_async_moves:  # As in `cut`.
        search.try_plan(*integral(ilp))
    if not search.is_done and not session.is_lost:
        decide_fractional(search, ilp, session, deadline)
    if not (search.is_done or session.is_lost or ilp.reduced.is_partial):
        left_s, gap = deadline - time.perf_counter(), SOLVER_SHARE * search.problem.options.gap
        if session.search(left_s, gap, warm=False).has_solution:
            search.try_plan(*integral(ilp))


# Rounds of rows that a relaxation's solution breaks: demand on the engines, and knapsacks.

_RAISED = 1e-5
"""Part of the step by which rows for the engines have to raise the bound for others to follow."""
_WORTH = 0.01
"""Part of the gap that a round of knapsack rows has to close for another to follow."""


def add_engine_cuts(search: Search, ilp: Formulation, session: Session, relaxed: Solved, deadline: float) -> Solved:
    """Add rows for spans in which the relaxation asks too much work of an engine, while they raise the bound."""
    while (block := ilp.demand.add_broken()) is not None:
        session.extend(block)
        before, relaxed = relaxed, session.relax(deadline - time.perf_counter())
        if relaxed.outcome is not Outcome.CONVERGED:
            break
        search.update_prices(prices_of(session, ilp, None, len(search.problem.graph.kernels)))
        assert before.objective is not None
        assert relaxed.objective is not None
        if relaxed.objective < before.objective * (1 + _RAISED):
            break
    return relaxed


def cut(search: Search, ilp: Formulation, session: Session, cuts: Cuts, deadline: float) -> None:
    """Add rows that the relaxation breaks as long as they close much of the gap; then try a plan from its solution."""
    kernels = len(search.problem.graph.kernels)
    before_us, count = search.bound_us, cuts.count
    while not search.is_done:
        last_us, added = search.bound_us, (cuts.add_broken(), ilp.demand.add_broken())
        blocks = [block for block in added if block is not None]
        for block in blocks:
            session.extend(block)
        if not blocks:
            break
        if session.relax(deadline - time.perf_counter()).outcome is not Outcome.CONVERGED:
            return
        search.update_prices(prices_of(session, ilp, cuts, kernels))
        if search.bound_us - last_us < _WORTH * (search.objective_us - search.bound_us):
            break
    if search.bound_us > before_us and not search.is_done:
        log.info("%d knapsack rows raise the bound by %.3g", cuts.count - count, search.bound_us / before_us - 1)
        # Of asynchronous moves few are integral before HiGHS decides them: local search has better plans by then.
        if not ilp.has_async_moves:
            search.try_plan(*integral(ilp))


# From the best plan to one that can have addresses: what finds none is placed anew around the rest, or excluded.

_ORDERS = 6
"""Orders in which stays that find no address are placed anew, from each packing, as far as there is time."""
_RESIDENCIES = 8
"""Residencies of a flow that are tried before it is slow for life."""


def spill(
    builder: PlanBuilder, candidates: Iterable[Addresses], seed: int, deadline_s: float, end_s: float = math.inf
) -> Spilled | None:
    """Return the cheapest plan that `spill_around` makes from several addresses and orders; None if it makes none.

    One try at least is made from each, whatever the deadline by `time.perf_counter`; beyond the end, from each until
    one is found.
    """
    best = None

    def tries() -> Iterator[tuple[int, Addresses]]:
        seen = []  # Candidates are made one by one; the other orders go over all of them again.
        for one in candidates:
            seen.append(one)
            yield 0, one
        yield from product(range(1, _ORDERS), seen)

    for number, addresses in tries():
        now = time.perf_counter()
        if (number and now >= deadline_s) or (best and now >= end_s):
            return best
        spilled = spill_around(builder, addresses, number, seed)
        if spilled is not None and (best is None or spilled.builder.cost_us < best.builder.cost_us):
            best = spilled
    return best


def spill_around(builder: PlanBuilder, addresses: Addresses, number: int, seed: int) -> Spilled | None:
    """Return the plan in which flows whose stays are left out get others that find addresses, in an order.

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
        addresses, rank = self.addresses.copy(), self.builder.rank(group)
        if self.replace(group) and self.builder.rank(group) < rank:
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
        """Give a flow that has none a residency; return whether its stays have addresses."""
        builder, flow = self.builder, self.builder.flows[index]
        for stay in self._without_hole(index):
            builder.conflicts.add([stay])
        for _ in range(_RESIDENCIES):
            residency = builder.best(index)
            failed = self._put(index, residency)
            if failed is not None and self._put(index, blocking := residency.with_windows(None, ())) is None:
                failed, residency = None, blocking
            if failed is None:
                builder.insert(index, residency)
                return builder.residencies[index] == residency
            builder.conflicts.add([failed])
        builder.insert(index, builder.best(index) if any(flow.must) else all_slow(flow))
        return not any(flow.must)

    def _without_hole(self, index: int) -> Iterator[Stay]:
        """Yield the stays at a gadget, or at two and over the gap between, for which there is no hole."""
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


def not_all_fast(ilp: Formulation, members: Sequence[Member], decided: dict[int, Residency]) -> pyo.Block | None:
    """Add the row (F11): of what a conflict's members hold, gadgets and gaps, at least one is given up.

    Flows without variables do what is `decided`. Return None where nothing is left to choose, or nothing forbids it.
    """
    terms: list[tuple[Variable, ...]] = []
    for member in members:
        if member[0] in ilp.flows:
            terms += _held(ilp, member)
        elif not holds(decided[member[0]], member):
            return None
    if not terms:
        return None
    block = pyo.Block(concrete=True)
    pairs = [(variable, 1.0) for term in terms for variable in term]
    block.not_all_fast = pyo.Constraint(expr=(None, linear(pairs), len(terms) - 1.0))
    name = f"conflict_{sum(1 for _ in ilp.model.component_objects(pyo.Block))}"
    ilp.model.add_component(name, block)
    return block


def _held(ilp: Formulation, member: Member) -> list[tuple[Variable, ...]]:
    """Return, by gap, the variables that sum to staying fast over it; of a member at one gadget the gadget's."""
    index, first, last = member
    a, b = ilp.model.a, ilp.model.b
    if first == last:
        sums = [(lookup(a, index, first), lookup(b, index, first))]
    else:
        sums = [(lookup(a, index, k + 1), kept_copied(ilp, index, k)) for k in range(first, last)]
    return [tuple(variable for variable in terms if variable is not None) for terms in sums]


_PLACING, _LOCALLY = 0.15, 0.1
"""Time for placing stays anew and for improving that, as a share of what the search has taken; and for improving the
plan before, of what is left for a better one."""
_NEARLY = 1.5
"""Times the asked gap at which a plan that fits is worth more than the time that a smaller limit would take."""
_SHARE, _LEAST_S = 2.5, 2.0
"""Time for this as a share of what the search has taken, and at least; after that a smaller limit is the better way."""


def make_addressable(search: Search, ilp: Formulation, session: Session | None, end_s: float) -> None:
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
    while not packing.fits(*stays_of(search.best), search.problem.limit_bytes):
        spilled = _spilled(search, packing, end_s)
        best = min((one for one in (best, spilled) if one), key=lambda one: one.builder.cost_us, default=None)
        if _take(search, packing, spilled, asked):
            break
        if spilled and _find_better(search, spilled, ilp, session, deadline):
            continue
        members = _exclude(search, packing) if time.perf_counter() < deadline else ()
        if not members:
            is_late = time.perf_counter() >= end_s
            search.timed_out |= is_late
            _take(search, packing, best, math.inf if is_late else _NEARLY * asked)
            break
        if session is None or session.is_lost or search.is_done:
            continue
        block = not_all_fast(ilp, members, search.reduced.decided)
        if block is not None:
            blocks.append(block)
            session.extend(block)
            search_again(search, ilp, session, deadline)
    for block in blocks:
        ilp.model.del_component(block)


def _find_better(search: Search, spilled: Spilled, ilp: Formulation, session: Session | None, deadline: float) -> bool:
    """Search a plan that is close enough even if addresses cost it as much as the last one; whether one was found."""
    now = time.perf_counter()
    if now >= deadline:
        return False
    search.reserve_us = spilled.builder.cost_us - search.best.cost_us
    search.refine(now + _LOCALLY * (deadline - now))
    if not search.is_done and session is not None and not session.is_lost:
        search_again(search, ilp, session, deadline)
    is_better, search.reserve_us = search.is_done, 0.0
    return is_better


def _exclude(search: Search, packing: StepPacking) -> Sequence[Member]:
    """Drop one conflicting stay from the best plan; return the conflict's members, none if that changed nothing."""
    builder = search.best
    conflict = packing.conflict(*stays_of(builder), search.problem.limit_bytes)
    if not (members := search.conflicts.add(conflict)):
        return ()
    before = dict(builder.residencies)
    builder.give_up(members)
    search.objective_us = search.problem.base_us + builder.cost_us
    if all(builder.residencies[index] == before[index] for index, _, _ in members):
        return ()
    log.info("%d stays do not fit together: %.6g us without one of them", len(conflict), search.objective_us)
    return members


def _spilled(search: Search, packing: StepPacking, end_s: float) -> Spilled | None:
    """Return the best plan, with what finds no address placed anew, improved for a while if its gap is too large."""
    problem, builder = search.problem, search.best
    candidates = packing.addresses(*stays_of(builder), problem.limit_bytes)
    now = time.perf_counter()
    deadline = min(end_s, now + _PLACING * (now - search.started_s))
    spilled = spill(builder, candidates, problem.options.seed, deadline, end_s)
    if spilled is not None:
        count, cost_us = len(spilled.addresses.left_out), spilled.builder.cost_us
        refine(spilled.builder, search.priced, deadline, search.target_us, problem.options.seed, spilled.exchange)
        costs_us = cost_us, spilled.builder.cost_us
        log.info("%d stays placed anew: %.6g us, improved %.6g us", count, *(problem.base_us + us for us in costs_us))
    return spilled


def _take(search: Search, packing: StepPacking, spilled: Spilled | None, gap: float) -> bool:
    """Take over a plan all of whose stays have addresses if it is within the gap."""
    if spilled is None:
        return False
    problem, builder = search.problem, spilled.builder
    objective_us = problem.base_us + builder.cost_us
    if objective_us - search.bound_us > gap * objective_us:
        return False
    if not packing.keep(*stays_of(builder), problem.limit_bytes, spilled.addresses):
        return False
    search.builder, search.objective_us = builder, objective_us
    return True


def stays_of(builder: PlanBuilder) -> tuple[list[Stay], dict[int, str]]:
    """Return the stays and implementations of what was chosen."""
    stays, _, implementations = plan_of(builder)
    return stays, implementations


def plan_of(builder: PlanBuilder) -> tuple[list[Stay], list[Move], dict[int, str]]:
    """Return the stays, moves and implementations of what was chosen."""
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
