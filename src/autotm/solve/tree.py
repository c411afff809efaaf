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

from autotm.model.certificate import Branch, Certificate, Empty, Leaf
from autotm.model.certificate import Prices as Stated
from autotm.solve.certificate import Prices
from autotm.solve.fixed import Fixed, Place
from autotm.solve.formulation import Formulation
from autotm.solve.held import Held
from autotm.solve.highs import Outcome, Session
from autotm.solve.lagrangian import Priced
from autotm.solve.rounding import Roundings
from autotm.solve.search import Search
from autotm.solve.solution import journeys, prices_of, ways
from autotm.solve.stated import like, state

log = logging.getLogger(__name__)

_CLOSE = 5e-10
"""Relative distance to the best plan at which a case is done even if no gap is allowed: rounding is left."""
_LEAST_S, _SHARE = 1.0, 1.0
"""A tree grows for so many seconds at least, and for this share of what the search took before it."""
_OFTEN, _THEN_EVERY = 32, 32
"""Relaxations until which plans are proposed from the 1st, 2nd, 4th, 8th ..., and then from each so many-th."""


@dataclass(eq=False)
class Node:
    """A case of the tree.

    Attributes:
        fixed: what it takes for granted.
        bound_us: what `stated` proves in it.
        stated: its prices.
        place: where its two cases differ; None for a leaf.
        cases: those: fast there, and not.
    """

    fixed: Fixed
    bound_us: float
    stated: Stated
    place: Place | None = None
    cases: tuple[Node | Empty, ...] = ()


class Tree:
    """The cases of a search whose root's prices do not prove enough."""

    def __init__(self, search: Search, made: Formulation, session: Session, roundings: Roundings) -> None:
        self._search = search
        self._made = made
        self._session = session
        self._roundings = roundings
        self._root: Node | None = None
        self._open: list[tuple[float, int, Node]] = []
        self._numbers = count()
        self._nodes = 1
        self._relaxations = 0
        self._closed_us = math.inf

    def grow_in_time(self, deadline: float) -> bool:
        """Grow for about as long as the search has taken already; whether the deadline left time for that."""
        now = time.perf_counter()
        taken_s = now - self._search.started_s
        self.grow(min(deadline, now + max(_LEAST_S, _SHARE * taken_s)))
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
        nodes: list[Branch | Leaf | Empty] = []
        waiting: list[Node | Empty] = [self._root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Empty):
                nodes.append(node)
            elif node.place is None or node.bound_us >= least_us:
                if id(node.stated) not in numbers:
                    numbers[id(node.stated)] = len(sets)
                    sets.append(node.stated)
                nodes.append(Leaf(numbers[id(node.stated)]))
            else:
                flow = node.fixed.lives.flows[node.place.flow]
                nodes.append(Branch(flow.tensor, node.place.span(flow)[0]))
                waiting += reversed(node.cases)
        return Certificate(tuple(sets), tuple(nodes))

    def _suffices(self, bound_us: float) -> bool:
        gap = max(self._search.problem.options.gap, _CLOSE)
        return bound_us >= self._search.objective_us * (1 - gap)

    def _push(self, node: Node) -> None:
        heapq.heappush(self._open, (node.bound_us, next(self._numbers), node))

    def _split(self, node: Node, held: Held, deadline: float) -> bool:
        """Bound a case better, and split it unless that is enough; `False` if there was no time for it."""
        held.hold(node.fixed)
        solved = self._session.relax(deadline - time.perf_counter())
        if solved.outcome is Outcome.INFEASIBLE:
            self._close(node)
            return True
        if solved.outcome is not Outcome.CONVERGED:
            return False
        self._relaxations += 1
        search, kernels = self._search, len(node.fixed.room)
        prices = like(self._first, prices_of(self._session, self._made, self._roundings, kernels))
        priced = search.lagrangian.at(prices)
        bound_us = search.problem.base_us + priced.bound_in_us(node.fixed)
        if bound_us >= node.bound_us:
            node.bound_us, node.stated = bound_us, state(prices, search.choices.tables, self._first)
        fractions = held.fractions()
        if not fractions or self._is_time_for_a_plan:
            search.propose(journeys(self._made), ways(self._made))
        if self._suffices(node.bound_us) or not fractions:
            self._close(node)
        else:
            self._branch(node, self._dearest(fractions, priced), priced, bound_us)
        return True

    @property
    def _is_time_for_a_plan(self) -> bool:
        done = self._relaxations
        return done & (done - 1) == 0 if done <= _OFTEN else done % _THEN_EVERY == 0

    def _close(self, node: Node) -> None:
        self._closed_us = min(self._closed_us, node.bound_us)

    def _dearest(self, fractions: list[tuple[Place, float]], priced: Priced) -> Place:
        """The place that pays most rent for memory, weighed by how undecided it is; the larger one where none pays."""
        flows = self._search.choices.flows

        def weight(found: tuple[Place, float]) -> tuple[float, float]:
            place, share = found
            flow = flows[place.flow]
            return share * priced.rent_us(flow, *place.span(flow)), share * flow.size_bytes

        return max(fractions, key=weight)[0]

    def _branch(self, node: Node, place: Place, priced: Priced, bound_us: float) -> None:
        """Both cases, bounded at their parent's prices for now."""
        node.place = place
        base_us, stated = self._search.problem.base_us, node.stated
        cases: list[Node | Empty] = []
        for fast in (True, False):
            fixed = node.fixed.at(place, fast)
            full_at = fixed.overfull
            if full_at is not None:
                cases.append(Empty(full_at))
                continue
            # Where older prices prove more of the parent, they are kept for the cases too, with what they prove there.
            own_us = base_us + priced.bound_in_us(fixed) if bound_us >= node.bound_us else node.bound_us
            case = Node(fixed, own_us, stated)
            self._nodes += 1
            cases.append(case)
            self._push(case)
        node.cases = tuple(cases)
