"""The lower bound that prices prove, term by term: what changes a few choices then costs little to evaluate."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from autotm.model.engine import ENGINE_PARTS
from autotm.solve.certificate import Prices, Rents, cheapest_entry_us
from autotm.solve.choices import Choices, priced
from autotm.solve.fixed import Fixed, Lives
from autotm.solve.flow import Flow
from autotm.solve.rented import Rented
from autotm.solve.shortest_path import best_value


class Lagrangian:
    """Bounds of one problem, for any prices of bytes, portions and engines >= 0 and any of slow operands.

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
    def rented(self) -> Rented:
        """The flows that share nothing but memory, as arrays."""
        flows = [self.choices.flows[index] for index in self.others]
        return Rented(flows, np.full(len(flows), math.inf), self.limit_bytes, self.kernels)

    @cached_property
    def nothing_fixed(self) -> Fixed:
        """The whole problem as a case."""
        return Fixed(Lives(self.choices.flows), np.full(self.kernels, self.limit_bytes, np.int64), {})

    def at(self, prices: Prices) -> Priced:
        """The bound of some prices."""
        return Priced(self, prices)


class Priced:
    """Every tensor's cheapest journey and every table's cheapest entry at some prices.

    Attributes:
        prices: these.
        bound_us: of the whole problem, without the kernels that have no table.
    """

    def __init__(self, problem: Lagrangian, prices: Prices) -> None:
        choices, limit_bytes = problem.choices, problem.limit_bytes
        self.prices = prices
        self._problem = problem
        self._rents = Rents(prices, limit_bytes)
        self._flow_us = np.zeros(len(choices.flows))
        self._flow_us[problem.others] = problem.rented.cheapest(prices.byte_us, prices.rounded).cost_us
        for index in problem.singles:
            self._flow_us[index] = self._journey_us(self._flow(index))
        self._table_us = [self._entry_us(number, limit_bytes) for number in range(len(choices.tables))]
        rent_us = float(prices.byte_us.sum()) * limit_bytes
        rent_us += sum(float(each.sum()) * (limit_bytes // divisor) for divisor, each in prices.rounded.items())
        rent_us += float(prices.engines.out_us.sum() + prices.engines.back_us.sum()) * ENGINE_PARTS
        self.bound_us = float(self._flow_us.sum()) + sum(self._table_us) - rent_us

    def bound_in_us(self, fixed: Fixed) -> float:
        """The bound in a case of the problem; infinite where nothing is left."""
        total, choices = self.bound_us, self._problem.choices
        for index in fixed.touched:
            total += self._journey_us(fixed.left(index, self._flow(index))) - float(self._flow_us[index])
        for number, table in enumerate(choices.tables):
            room = int(fixed.room[table.kernel])
            if room < self._problem.limit_bytes:
                total += self._entry_us(number, room) - self._table_us[number]
        return total

    def rent_us(self, flow: Flow, start: int, end: int) -> float:
        """What the flow pays for fast memory during kernels [start, end)."""
        return self._rents.memory_us(flow, start, end)

    def _flow(self, index: int) -> Flow:
        flow, ties = self._problem.choices.flows[index], self._problem.choices.ties[index]
        return replace(flow, slow_us=priced(flow, ties, self.prices.slow_us)) if ties else flow

    def _journey_us(self, flow: Flow) -> float:
        return best_value(flow, self._rents.charges(flow))

    def _entry_us(self, number: int, room_bytes: int) -> float:
        table, prices = self._problem.choices.tables[number], self.prices
        rent_us = prices.byte_us[table.kernel] * table.fast_bytes
        for divisor, each in prices.rounded.items():
            rent_us = rent_us + each[table.kernel] * (table.fast_bytes // divisor)
        return cheapest_entry_us(table, prices.slow_us[number], rent_us, room_bytes)
