"""The lower bound that prices prove, term by term: what changes a few choices then costs little to evaluate."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from autotm.solve.bounds.certificate import HoldingCosts, Prices, cheapest_entry_us
from autotm.solve.bounds.fixed import Fixed
from autotm.solve.bounds.priced_residencies import PricedResidencies
from autotm.solve.problem import Choices, Flow, Residency, Table, Window, best_value, cost_us, fast_spans, priced

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
