"""The lower bound that prices prove, term by term, for a problem and for cases of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autotm.solve.choices import Choices, Flow, Window, flags, priced
from autotm.solve.prices import HoldingCosts, Prices, cheapest_entry_us
from autotm.solve.problem import Ints, Table
from autotm.solve.residencies import PricedResidencies, Residency, best_value, cost_us, fast_spans

# A case of a problem: tensors that are fast somewhere, or are not, and the choices that this leaves.

_ANY_BYTES = 2**62


class Place(NamedTuple):
    """A gadget of a flow, or the gap after it, over which the flow stays fast or does not."""

    flow: int
    gadget: int
    is_gap: bool

    def span(self, flow: Flow) -> tuple[int, int]:
        """Kernels [start, end); none in the gap between neighbours."""
        return flow.gap(self.gadget) if self.is_gap else (flow.starts[self.gadget], flow.stops[self.gadget])


class AsyncMove(NamedTuple):
    """A window of a flow's copy over a gap: used if there is such a copy, or not used.

    Attributes:
        flow: whose.
        gadget: the gap is the one after it.
        is_out: whether the copy is one to slow memory.
        window: beside which kernels.
    """

    flow: int
    gadget: int
    is_out: bool
    window: Window


class Spaces(NamedTuple):
    """A table's fast workspaces: at most so many bytes, or more."""

    table: int
    most_bytes: int


Decision = Place | AsyncMove | Spaces


class Lives:
    """Flows, with their sizes and first and last kernels as arrays."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = flows
        self.sizes: Ints = np.array([flow.size_bytes for flow in flows], np.int64)
        self.starts = [flow.starts[0] for flow in flows]
        self.stops = [flow.stops[-1] for flow in flows]


@dataclass(frozen=True, eq=False)
class Fixed:
    """Decisions that are made.

    Attributes:
        lives: of all flows.
        room: (kernels,) bytes of fast memory that the flows fixed as fast leave.
        places: by flow, whether it is fast at some of its places.
        async_moves: by flow, whether some of its windows are used where it is copied.
        spaces: by table, what its fast workspaces take more than, and what at most.
    """

    lives: Lives
    room: Ints
    places: Mapping[int, Mapping[Place, bool]]
    async_moves: Mapping[int, Mapping[AsyncMove, bool]]
    spaces: Mapping[int, tuple[int, int]]

    @classmethod
    def nothing(cls, flows: Sequence[Flow], limit_bytes: int, kernels: int) -> Fixed:
        """No decision."""
        return cls(Lives(flows), np.full(kernels, limit_bytes, np.int64), {}, {}, {})

    def at(self, decision: Decision, holds: bool) -> Fixed:
        """One decision more."""
        if isinstance(decision, AsyncMove):
            async_moves = {**self.async_moves.get(decision.flow, {}), decision: holds}
            return replace(self, async_moves={**self.async_moves, decision.flow: async_moves})
        if isinstance(decision, Spaces):
            more, most = self.spaces.get(decision.table, (-1, _ANY_BYTES))
            bounds = (more, min(most, decision.most_bytes)) if holds else (max(more, decision.most_bytes), most)
            return replace(self, spaces={**self.spaces, decision.table: bounds})
        room, flow = self.room, self.lives.flows[decision.flow]
        if holds:
            start, end = decision.span(flow)
            room = room.copy()
            room[start:end] -= flow.size_bytes
        places = {**self.places.get(decision.flow, {}), decision: holds}
        return replace(self, room=room, places={**self.places, decision.flow: places})

    def bytes_of(self, number: int, kernel: int) -> tuple[int, int]:
        """What the fast workspaces of a table take more than, and what at most."""
        more, most = self.spaces.get(number, (-1, _ANY_BYTES))
        return more, min(most, int(self.room[kernel]))

    def operands(self, keys: Sequence[tuple[int, int]]) -> dict[int, bool]:
        """Whether operands are slow, of those of a table, given by flow and gadget, for which that is fixed."""
        places = (
            (operand, self.places.get(index, {}), Place(index, k, False)) for operand, (index, k) in enumerate(keys)
        )
        return {operand: not own[place] for operand, own, place in places if place in own}

    def beside_only(self, index: int) -> set[tuple[int, bool]]:
        """Gaps over which a flow's copies are not blocking, with whether these are copies to slow memory."""
        return {(one.gadget, one.is_out) for one, used in self.async_moves.get(index, {}).items() if used}

    @property
    def is_empty(self) -> bool:
        """Whether what has to be fast exceeds the limit."""
        return bool((self.room < 0).any())

    @cached_property
    def touched(self) -> list[int]:
        """Flows that may have fewer choices than without it."""
        lives = self.lives
        large = np.flatnonzero(lives.sizes > int(self.room.min())).tolist()
        tight = (i for i in large if self.room[lives.starts[i] : lives.stops[i]].min() < lives.sizes[i])
        return sorted({*self.places, *self.async_moves, *tight})

    def left(self, index: int, flow: Flow) -> Flow:
        """A flow with the choices that are left to it."""
        found = self.within_room(index, flow)
        must, may = list(found.must), list(found.may)
        between, read = list(found.may_between), list(found.may_read)
        for (_, k, is_gap), fast in self.places.get(index, {}).items():
            if not fast:
                (between if is_gap else may)[k] = False
            elif is_gap:
                # Fast at both ends, and not by a read: so it stays.
                must[k] = must[k + 1] = True
                read[k + 1] = False
            else:
                must[k] = True
        return replace(
            found,
            must=flags(tuple(must)),
            may=flags(tuple(may)),
            may_between=flags(tuple(between)),
            may_read=flags(tuple(read)),
        )

    def within_room(self, index: int, flow: Flow) -> Flow:
        """A flow with the choices that have room, where it is fixed as fast too, and the windows that are left."""
        own = {place for place, fast in self.places.get(index, {}).items() if fast}
        gadgets, gaps = range(len(flow)), range(len(flow) - 1)
        may = [flow.may[k] and self._fits(flow, Place(index, k, False), own) for k in gadgets]
        between = [flow.may_between[k] and self._fits(flow, Place(index, k, True), own) for k in gaps]
        return replace(
            flow,
            may=flags(tuple(may)),
            may_between=flags(tuple(between)),
            may_read=flags(tuple(read and here for read, here in zip(flow.may_read, may, strict=True))),
            out=tuple(self._windows(index, k, True, flow) for k in gaps),
            back=tuple(self._windows(index, k, False, flow) for k in gaps),
        )

    def _fits(self, flow: Flow, place: Place, own: set[Place]) -> bool:
        return place in own or self._has_room(flow, *place.span(flow))

    def _windows(self, index: int, k: int, is_out: bool, flow: Flow) -> tuple[Window, ...]:
        own = {one.window: used for one, used in self.async_moves.get(index, {}).items() if one[1:3] == (k, is_out)}
        only = {window for window, used in own.items() if used}
        windows = (window for window in (flow.out if is_out else flow.back)[k] if own.get(window, not only))
        return tuple(window for window in windows if self._has_room(flow, window.start, window.end))

    def _has_room(self, flow: Flow, start: int, end: int) -> bool:
        return start >= end or bool(self.room[start:end].min() >= flow.size_bytes)


# The lower bound that prices prove, term by term: what changes a few choices then costs little to evaluate.

_NONE: Mapping[int, bool] = {}


class Lagrangian:
    """Bounds of one problem, for any prices of bytes, weights and engines >= 0 and any of slow operands.

    Args:
        choices: of all tensors and kernels.
        limit_bytes: what is larger than this never is in fast memory.
        kernels: of the step.
    """

    def __init__(self, choices: Choices, limit_bytes: int, kernels: int) -> None:
        self.choices = choices
        self.limit_bytes = limit_bytes
        self.kernels = kernels
        one_by_one = [bool(ties) or any(f.out + f.back) for f, ties in zip(choices.flows, choices.ties, strict=True)]
        self.singles = [index for index, single in enumerate(one_by_one) if single]
        self.others = [index for index, single in enumerate(one_by_one) if not single]

    @cached_property
    def priced_residencies(self) -> PricedResidencies:
        """The flows that share nothing but memory, as arrays."""
        flows = [self.choices.flows[index] for index in self.others]
        return PricedResidencies(flows, np.full(len(flows), math.inf), self.limit_bytes, self.kernels)

    @cached_property
    def nothing_fixed(self) -> Fixed:
        """The whole problem as a case."""
        return Fixed.nothing(self.choices.flows, self.limit_bytes, self.kernels)

    def at(self, prices: Prices) -> Priced:
        """The bound of some prices."""
        return Priced(self, prices)


class Priced:
    """Every tensor's cheapest residency and every table's cheapest entry at some prices.

    Attributes:
        prices: these.
        bound_us: of the whole problem, without the kernels that have no table.
    """

    def __init__(self, problem: Lagrangian, prices: Prices) -> None:
        choices, limit_bytes = problem.choices, problem.limit_bytes
        self.prices = prices
        self._problem = problem
        self._holding = HoldingCosts(prices, limit_bytes)
        self._flow_us = np.zeros(len(choices.flows))
        self._flow_us[problem.others] = problem.priced_residencies.cheapest(prices.byte_us, prices.weighed_us).cost_us
        for index in problem.singles:
            self._flow_us[index] = self._residency_us(self._flow(index))
        self._table_us = [self._entry_us(number, -1, limit_bytes) for number in range(len(choices.tables))]
        self.bound_us = float(self._flow_us.sum()) + sum(self._table_us) - prices.holding_us(limit_bytes)

    def bound_in_us(self, fixed: Fixed) -> float:
        """The bound in a case of the problem; infinite where nothing is left."""
        if fixed.is_empty:
            return math.inf
        total, choices = self.bound_us, self._problem.choices
        for index in fixed.touched:
            left_us = self._residency_us(fixed.left(index, self._flow(index)), fixed.beside_only(index))
            total += left_us - float(self._flow_us[index])
        for number, table in enumerate(choices.tables):
            more, most = fixed.bytes_of(number, table.kernel)
            tiers = fixed.operands(choices.operands[number])
            if more >= 0 or most < self._problem.limit_bytes or tiers:
                total += self._entry_us(number, more, most, tiers) - self._table_us[number]
        return total

    def regret_us(self, index: int, residency: Residency) -> float:
        """What a residency costs a flow more than its cheapest one, at these prices; none below 0 but for rounding."""
        flow, engines = self._flow(index), self.prices.engines
        holding_us = sum(self.holding_us(flow, *span) for span in fast_spans(flow, residency))
        holding_us += engines.out.of_us(residency.out) if residency.out else 0.0
        holding_us += sum(engines.back.of_us(window) for _, window in residency.back)
        return cost_us(flow, residency) + holding_us - float(self._flow_us[index])

    def entry_regret_us(self, number: int, table: Table, entry: int) -> float:
        """What an entry of a table, or of what is left of it, costs more than the cheapest of all."""
        shares = self.prices.slow_us[number]
        paid_us = sum(share for operand, share in enumerate(shares) if int(table.slow[entry]) >> operand & 1)
        holding_us = self.entry_holding_us(table, int(table.fast_bytes[entry]))
        return float(table.time_us[entry]) + holding_us - paid_us - self._table_us[number]

    def window_us(self, flow: Flow, window: Window, *, is_out: bool) -> float:
        """What the flow pays for fast memory and its engine over a window."""
        return self._holding.window_us(flow, window, is_out=is_out)

    def holding_us(self, flow: Flow, start: int, end: int) -> float:
        """What the flow pays for fast memory during kernels [start, end)."""
        return self._holding.memory_us(flow, start, end)

    def entry_holding_us(self, table: Table, size_bytes: int) -> float:
        """What so many fast bytes of workspaces pay."""
        return float(self._holding.during_us(table.kernel, np.array([size_bytes]))[0])

    def _flow(self, index: int) -> Flow:
        flow, ties = self._problem.choices.flows[index], self._problem.choices.ties[index]
        return replace(flow, slow_us=priced(flow, ties, self.prices.slow_us)) if ties else flow

    def _residency_us(self, flow: Flow, beside_only: Collection[tuple[int, bool]] = ()) -> float:
        return best_value(flow, self._holding.charges(flow, beside_only))

    def _entry_us(self, number: int, more: int, most: int, tiers: Mapping[int, bool] = _NONE) -> float:
        table = self._problem.choices.tables[number]
        table = table.restricted(tiers) if tiers else table
        holding_us = self._holding.during_us(table.kernel, table.fast_bytes)
        return cheapest_entry_us(table, self.prices.slow_us[number], holding_us, most, more)
