"""Branch and bound whose proof can be checked: a tree of cases, each with the prices that bound it.

The case with the lowest bound is split first. Its relaxation gives prices, and these its bound and the first bounds of
its two cases, in one of which a tensor is fast at some place and in the other not. Solutions found on the way are
repaired into plans. A solver's own tree is deeper for its cuts, but says nothing that could be stored.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from dataclasses import dataclass
from itertools import count

from autotm.model.certificate import Branch, Certificate, Leaf, Split, WindowBranch, WorkspaceBranch
from autotm.model.certificate import Prices as Stated
from autotm.model.graph import Tier
from autotm.solve.cuts import Cuts
from autotm.solve.formulation import Formulation
from autotm.solve.highs import Outcome, Session
from autotm.solve.lagrangian import AsyncMove, Decision, Fixed, Place, Priced, Spaces
from autotm.solve.prices import Prices, certificate_of, like, state
from autotm.solve.relaxation import Held, prices_of, residencies, ways
from autotm.solve.search import Search

log = logging.getLogger(__name__)

_CLOSE = 5e-10
"""Relative distance to the best plan at which a case is done even if no gap is allowed: rounding is left."""
_INTEGRAL = 1e-6
_LEAST_S, _SHARE, _OF_LEFT = 1.0, 1.0, 0.5
"""A tree grows for so many seconds at least, else for what the search took before it, or this share of what is left."""
_OFTEN, _THEN_EVERY = 32, 32
"""Relaxations until which plans are proposed from the 1st, 2nd, 4th, 8th ..., and then from each so many-th."""


@dataclass(eq=False)
class Node:
    """A case of the tree.

    Attributes:
        fixed: what it takes for granted.
        bound_us: what `stated` proves in it.
        stated: its prices.
        decision: what its two cases differ in; None for a leaf.
        cases: those: where it holds, and where not.
    """

    fixed: Fixed
    bound_us: float
    stated: Stated
    decision: Decision | None = None
    cases: tuple[Node, ...] = ()


class Tree:
    """The cases of a search whose root's prices do not prove enough."""

    def __init__(self, search: Search, made: Formulation, session: Session, cuts: Cuts) -> None:
        self._search = search
        self._made = made
        self._session = session
        self._cuts = cuts
        self._root: Node | None = None
        self._open: list[tuple[float, int, Node]] = []
        self._numbers = count()
        self._nodes = 1
        self._relaxations = 0
        self._closed_us = math.inf

    def grow_in_time(self, deadline: float) -> bool:
        """Grow for about as long as the search has taken already; whether the deadline left time for that."""
        now = time.perf_counter()
        taken_s, left_s = now - self._search.started_s, deadline - now
        self.grow(min(deadline, now + max(_LEAST_S, min(_SHARE * taken_s, _OF_LEFT * left_s))))
        return time.perf_counter() < deadline

    @property
    def bound_us(self) -> float:
        """The least bound of its leaves."""
        return min(self._closed_us, self._open[0][0] if self._open else math.inf)

    def grow(self, deadline: float) -> None:
        """Split cases until their bounds prove the asked gap, nothing is left to split, or time is up."""
        if self._root is None:
            self._plant()
        with Held(self._made, self._session) as held:
            while self._open and not self._suffices(self._open[0][0]) and time.perf_counter() < deadline:
                _, _, node = heapq.heappop(self._open)
                if not self._split(node, held, deadline):
                    self._push(node)
                    break
        self._search.prove(self.bound_us, self.certificate())
        log.info("tree of %d cases: bound %.6g us, %d relaxations", self._nodes, self.bound_us, self._relaxations)

    def _plant(self) -> None:
        search = self._search
        assert search.prices is not None
        self._first: Prices = search.prices
        self._stated = search.stated
        self._root = Node(search.lagrangian.nothing_fixed, search.bound_us, self._stated)
        self._push(self._root)

    def certificate(self) -> Certificate:
        """The tree with its prices."""
        least_us = self.bound_us
        assert self._root is not None
        numbers: dict[int, int] = {id(self._stated): 0}
        sets = [self._stated]
        nodes: list[Split | Leaf] = []
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if node.decision is None or node.bound_us >= least_us:
                if id(node.stated) not in numbers:
                    numbers[id(node.stated)] = len(sets)
                    sets.append(node.stated)
                nodes.append(Leaf(numbers[id(node.stated)]))
            else:
                nodes.append(self._stated_split(node.decision))
                waiting += reversed(node.cases)
        return certificate_of(sets, nodes, self._cuts.found)

    def _stated_split(self, decision: Decision) -> Split:
        choices = self._search.choices
        if isinstance(decision, Spaces):
            return WorkspaceBranch(choices.tables[decision.table].kernel, decision.most_bytes)
        flow = choices.flows[decision.flow]
        if isinstance(decision, AsyncMove):
            destination = Tier.PMEM if decision.is_out else Tier.DRAM
            return WindowBranch(flow.tensor, destination, decision.window.start, decision.window.end)
        return Branch(flow.tensor, decision.span(flow)[0])

    def _suffices(self, bound_us: float) -> bool:
        return bound_us >= min(self._search.needed_us, self._search.objective_us * (1 - _CLOSE))

    def _push(self, node: Node) -> None:
        # Of equal bounds the newest: the deeper, the sooner something is proven.
        heapq.heappush(self._open, (node.bound_us, -next(self._numbers), node))

    def _split(self, node: Node, held: Held, deadline: float) -> bool:
        """Bound a case better, and split it unless that is enough; `False` if there was no time for it."""
        held.hold(node.fixed)
        solved = self._session.relax(deadline - time.perf_counter())
        if solved.outcome is Outcome.INFEASIBLE:
            self._take_apart(node)
            return True
        # Prices prove something wherever simplex stopped.
        if not solved.has_solution or time.perf_counter() >= deadline:
            return False
        self._relaxations += 1
        search, kernels = self._search, len(node.fixed.room)
        prices = like(self._first, prices_of(self._session, self._made, self._cuts, kernels))
        priced = search.lagrangian.at(prices)
        bound_us = search.problem.base_us + priced.bound_in_us(node.fixed)
        stated = state(prices, search.choices.tables, self._first)
        if bound_us >= node.bound_us:
            node.bound_us, node.stated = bound_us, stated
        block = self._made.demand.add_broken()
        if block is not None:
            self._session.extend(block)
        fractions = [(decision, share) for decision, share in held.fractions() if share > _INTEGRAL]
        if not fractions or self._is_time_for_a_plan:
            search.propose(residencies(self._made), ways(self._made))
        if self._suffices(node.bound_us):
            self._close(node)
        elif not fractions and block is not None:
            self._push(node)  # Its solution is one that the engines cannot keep up with.
        elif not fractions:
            self._close(node)
        else:
            self._branch(node, self._dearest(fractions, priced), priced, stated)
        return True

    @property
    def _is_time_for_a_plan(self) -> bool:
        done = self._relaxations
        return done & (done - 1) == 0 if done <= _OFTEN else done % _THEN_EVERY == 0

    def _take_apart(self, node: Node) -> None:
        """A case with nothing left, which no prices are there to prove: split it until that is plain to see."""
        operands = self._search.choices.operands
        places = (Place(*key, is_gap=False) for number in node.fixed.spaces for key in operands[number])
        place = next((place for place in places if place not in node.fixed.places.get(place.flow, {})), None)
        if place is None:
            self._close(node)
        else:
            self._branch(node, place, self._search.lagrangian.at(self._first), self._stated)

    def _close(self, node: Node) -> None:
        self._closed_us = min(self._closed_us, node.bound_us)

    def _dearest(self, fractions: list[tuple[Decision, float]], priced: Priced) -> Decision:
        """What pays most holding cost for memory, weighed by how undecided it is; the larger one where none pays.

        Windows and workspaces come last: which are best depends on where the tensors are.
        """

        def weight(found: tuple[Decision, float]) -> tuple[bool, float, float]:
            holding_us, size_bytes = self._stake(found[0], priced)
            return isinstance(found[0], Place), found[1] * holding_us, found[1] * size_bytes

        return max(fractions, key=weight)[0]

    def _stake(self, decision: Decision, priced: Priced) -> tuple[float, float]:
        """Holding cost in microseconds, and bytes."""
        choices = self._search.choices
        if isinstance(decision, Spaces):
            table = choices.tables[decision.table]
            range_bytes = table.most_bytes - table.least_bytes
            return priced.entry_holding_us(table, range_bytes), range_bytes
        flow = choices.flows[decision.flow]
        if isinstance(decision, AsyncMove):
            return priced.window_us(flow, decision.window, is_out=decision.is_out), flow.size_bytes
        return priced.holding_us(flow, *decision.span(flow)), flow.size_bytes

    def _branch(self, node: Node, decision: Decision, priced: Priced, stated: Stated) -> None:
        """Both cases, bounded at the prices found for their parent; at its older ones where these prove more."""
        node.decision = decision
        base_us = self._search.problem.base_us
        cases = []
        for holds in (True, False):
            fixed = node.fixed.at(decision, holds)
            own_us = base_us + priced.bound_in_us(fixed)
            older = own_us < node.bound_us
            case = Node(fixed, node.bound_us, node.stated) if older else Node(fixed, own_us, stated)
            self._nodes += 1
            cases.append(case)
            self._push(case)
        node.cases = tuple(cases)
