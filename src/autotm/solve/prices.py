"""Prices of memory, knapsack rows and copying engines: charges, bounds, and certificates that state them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotm.model.plan import Certificate, KernelPrices
from autotm.model.plan import Cut as StatedCut
from autotm.model.plan import SlowPrices as StatedSlow
from autotm.model.plan import SpanPrices as StatedSpans
from autotm.solve.choices import Choices, TensorChoices, Window, priced
from autotm.solve.problem import Floats, Ints, Table
from autotm.solve.residencies import Charges, PricedCopy, PricedResidencies, Residency, best_value, cost_us, fast_spans


class Fitting:
    """A knapsack by dynamic programming over weights: the greatest weight of items that fit a number of bytes.

    Items are added one by one. Weights are whole numbers >= 1. Time and memory grow with the greatest weight that fits
    the limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._least_bytes: Ints = np.zeros(1, np.int64)
        """By weight, the fewest bytes of items that weigh as much or more."""

    def add(self, weight: int, size_bytes: int) -> None:
        """Add one item."""
        before = self._least_bytes
        with_it = np.concatenate((np.zeros(weight, np.int64), before)) + size_bytes
        with_it[0] = 0
        with_it[: len(before)] = np.minimum(with_it[: len(before)], before)
        self._least_bytes = with_it[: int(np.searchsorted(with_it, self._limit_bytes, side="right"))]

    def most(self, capacity_bytes: int) -> int:
        """Return the greatest weight that fits `capacity_bytes`, which may not exceed the limit."""
        return int(np.searchsorted(self._least_bytes, capacity_bytes, side="right")) - 1

    def most_in_each(self, capacities_bytes: Ints) -> Ints:
        """Return the greatest weight that fits each of many capacities; 0 for one that is not positive."""
        most: Ints = np.searchsorted(self._least_bytes, np.maximum(capacities_bytes, 0), side="right") - 1
        return most


@dataclass(frozen=True, eq=False)
class Cut:
    """A knapsack inequality: tensors in fast memory at one time weigh at most the greatest weight that fits the limit.

    Attributes:
        weights: weight by tensor; other tensors have none.
        limit_bytes: the limit.
        fitting: the knapsack that gives the greatest weight for any capacity.
    """

    weights: Mapping[str, int]
    limit_bytes: int
    fitting: Fitting

    @classmethod
    def of(cls, weights: Mapping[str, int], sizes_bytes: Mapping[str, int], limit_bytes: int) -> Cut:
        """Build a cut from the tensors' weights and sizes."""
        fitting = Fitting(limit_bytes)
        for tensor, weight in weights.items():
            fitting.add(weight, sizes_bytes[tensor])
        return cls(weights, limit_bytes, fitting)

    @property
    def most(self) -> int:
        """The greatest weight of tensors that fit the limit together."""
        return self.fitting.most(self.limit_bytes)

    def of_workspaces(self, fast_bytes: Ints) -> Ints:
        """Return the weight of workspaces of these sizes: by how much they lower the greatest weight that fits."""
        weights: Ints = self.most - self.fitting.most_in_each(self.limit_bytes - fast_bytes)
        return weights


@dataclass(frozen=True)
class SpanPrices:
    """Prices of one engine's time by spans of kernels; a move that must lie within a span pays its price.

    Attributes:
        starts, ends: span j has kernels [starts[j], ends[j]).
        lasts_ns: nanoseconds that an engine can work in each span.
        price_us: price of a nanosecond of work that cannot be done outside of the span; none below 0.
    """

    starts: Ints
    ends: Ints
    lasts_ns: Ints
    price_us: Floats

    @property
    def whole_us(self) -> float:
        """The price of all the work that an engine can do in the spans."""
        return float(self.lasts_ns @ self.price_us)

    def of_us(self, window: Window) -> float:
        """Return the price of a move that has to be done in a window."""
        return float(self.price_us[self.around(window)].sum()) * window.work_ns

    def around(self, window: Window) -> npt.NDArray[np.bool_]:
        """Return whether a window lies within each span (spans,)."""
        return (self.starts <= window.start) & (self.ends >= window.end)

    def unused_us(self, windows: Collection[Window]) -> Floats:
        """Return the price of the engine time that moves in these windows leave unused (spans,)."""
        work_ns = sum((self.around(window) * window.work_ns for window in windows), np.zeros(len(self.starts)))
        return (self.lasts_ns - work_ns) * self.price_us


@dataclass(frozen=True)
class EnginePrices:
    """Prices of both engines, for copies to slow and to fast memory."""

    out: SpanPrices
    back: SpanPrices

    @classmethod
    def none(cls) -> EnginePrices:
        """Return zero prices for both copy engines."""
        nothing = np.zeros(0, np.int64)
        free = SpanPrices(nothing, nothing, nothing, np.zeros(0))
        return cls(free, free)


SlowPrices = tuple[tuple[float, ...], ...]
"""Per table and operand, the price that the tensor pays the kernel for being slow."""


@dataclass(frozen=True)
class Prices:
    """The prices of the Lagrangian relaxation of capacity, knapsack, marginal and engine rows.

    Attributes:
        byte_us: price of a byte of fast memory during each kernel; none below 0.
        slow_us: per table and operand, the price of being slow.
        engines: prices of the time of the copying engines.
        cut_us: by cut, the price of a unit of its weight during each kernel; none below 0.
    """

    byte_us: Floats
    slow_us: SlowPrices
    engines: EnginePrices
    cut_us: Mapping[Cut, Floats] = field(default_factory=dict)

    def holding_us(self, limit_bytes: int) -> float:
        """Return the price of all fast memory, weight and engine time that the step has."""
        total = float(self.byte_us.sum()) * limit_bytes
        total += sum(float(each.sum()) * cut.most for cut, each in self.cut_us.items())
        return total + self.engines.out.whole_us + self.engines.back.whole_us

    @cached_property
    def weighed_us(self) -> Mapping[str, Floats]:
        """(kernels + 1,) By tensor that has weights, what it pays for them in the kernels before each."""
        paid_us: dict[str, Floats] = defaultdict(lambda: np.zeros(len(self.byte_us) + 1))
        for cut, each in self.cut_us.items():
            kernels = each.nonzero()[0]
            for tensor, weight in cut.weights.items():
                paid_us[tensor][kernels + 1] += weight * each[kernels]
        return {tensor: np.cumsum(paid) for tensor, paid in paid_us.items()}


class HoldingCosts:
    """Prices summed over kernels, so that the cost of a span of kernels is a difference of two sums."""

    def __init__(self, prices: Prices, limit_bytes: int) -> None:
        self._prices = prices
        self._until_us = np.concatenate(([0.0], np.cumsum(prices.byte_us)))
        self._limit_bytes = limit_bytes
        self._cuts_at: dict[int, list[tuple[Cut, float]]] = defaultdict(list)
        for cut, each in prices.cut_us.items():
            for kernel in each.nonzero()[0].tolist():
                self._cuts_at[kernel].append((cut, float(each[kernel])))

    def charges(self, flow: TensorChoices) -> Charges:
        """Return the charges of a flow: for fast and slow memory at its gadgets and gaps, and for its copies."""
        gaps, engines = range(len(flow) - 1), self._prices.engines
        return Charges(
            slow_us=flow.slow_us,
            fast_us=[self.memory_us(flow, start, stop) for start, stop in zip(flow.starts, flow.stops, strict=True)],
            between_us=[self.memory_us(flow, *flow.gap(k)) for k in gaps],
            out=[self._cheapest(flow, flow.out[k], flow.write_us, engines.out) for k in gaps],
            back=[self._cheapest(flow, flow.back[k], flow.read_us, engines.back) for k in gaps],
        )

    def during_us(self, kernel: int, size_bytes: Ints) -> Floats:
        """Return the holding cost of so many bytes each during one kernel (sizes,)."""
        total: Floats = self._prices.byte_us[kernel] * size_bytes
        for cut, price_us in self._cuts_at.get(kernel, ()):
            total = total + price_us * cut.of_workspaces(size_bytes)
        return total

    def _cheapest(
        self, flow: TensorChoices, windows: Sequence[Window], blocking_us: float, engine: SpanPrices
    ) -> PricedCopy:
        copies: list[PricedCopy] = [(blocking_us, None)]
        for window in windows:
            holding_us = self.memory_us(flow, window.start, window.end) + engine.of_us(window)
            copies.append((window.added_us + holding_us, window))
        return min(copies, key=lambda copy: copy[0])

    def memory_us(self, flow: TensorChoices, start: int, end: int) -> float:
        """Return the holding cost of fast memory during kernels [start, end)."""
        if end <= start:
            return 0.0
        if flow.size_bytes > self._limit_bytes:
            return math.inf
        total = float(self._until_us[end] - self._until_us[start]) * flow.size_bytes
        weighed_us = self._prices.weighed_us.get(flow.tensor)
        return total if weighed_us is None else total + float(weighed_us[end] - weighed_us[start])


def cheapest_entry_us(table: Table, shares: tuple[float, ...], holding_us: Floats, most_bytes: int) -> float:
    """Return a table's least cost when operand o pays it `shares[o]` for being slow, and entry e pays `holding_us[e]`.

    Only entries of at most `most_bytes` fast bytes count; the cost is infinite where there is none.
    """
    slow = table.slow[:, None] >> np.arange(len(shares)) & 1
    cost_us = table.time_us + holding_us - slow @ np.array(shares)
    return float(cost_us[table.fast_bytes <= most_bytes].min(initial=math.inf))


class Lagrangian:
    """The Lagrangian relaxation of one problem; `Priced` gives its bound at given prices.

    Prices of bytes, weights and engines are at least 0; prices of slow operands may have either sign.

    Args:
        choices: choices of all tensors and kernels.
        limit_bytes: the limit; a larger tensor is never in fast memory.
        kernels: number of kernels of the step.
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
        return PricedResidencies(flows, self.limit_bytes, self.kernels)


class Priced:
    """The lower bound that prices prove: every tensor's cheapest residency and every table's cheapest entry.

    The bound is a sum of terms, so a change of a few choices costs little to evaluate.

    Attributes:
        prices: the prices.
        bound_us: bound of the whole problem, without the kernels that have no table.
    """

    def __init__(self, problem: Lagrangian, prices: Prices) -> None:
        choices, limit_bytes = problem.choices, problem.limit_bytes
        self.prices = prices
        self._problem = problem
        self._holding = HoldingCosts(prices, limit_bytes)
        self._flow_us = np.zeros(len(choices.flows))
        self._flow_us[problem.others] = problem.priced_residencies.cheapest(prices.byte_us, prices.weighed_us).cost_us
        for index in problem.singles:
            flow = self._flow(index)
            self._flow_us[index] = best_value(flow, self._holding.charges(flow))
        self._table_us = [
            cheapest_entry_us(table, shares, self._holding.during_us(table.kernel, table.fast_bytes), limit_bytes)
            for table, shares in zip(choices.tables, prices.slow_us, strict=True)
        ]
        self.bound_us = float(self._flow_us.sum()) + sum(self._table_us) - prices.holding_us(limit_bytes)

    def regret_us(self, index: int, residency: Residency) -> float:
        """Return by how much a residency costs more than the flow's cheapest at these prices; >= 0 but for rounding."""
        flow, engines = self._flow(index), self.prices.engines
        holding_us = sum(self._holding.memory_us(flow, *span) for span in fast_spans(flow, residency))
        holding_us += engines.out.of_us(residency.out) if residency.out else 0.0
        holding_us += sum(engines.back.of_us(window) for _, window in residency.back)
        return cost_us(flow, residency) + holding_us - float(self._flow_us[index])

    def entry_regret_us(self, number: int, table: Table, entry: int) -> float:
        """Return by how much an entry exceeds the cheapest one of the whole table, of which `table` may be a part."""
        shares = self.prices.slow_us[number]
        paid_us = sum(share for operand, share in enumerate(shares) if int(table.slow[entry]) >> operand & 1)
        holding_us = float(self._holding.during_us(table.kernel, table.fast_bytes[[entry]])[0])
        return float(table.time_us[entry]) + holding_us - paid_us - self._table_us[number]

    def _flow(self, index: int) -> TensorChoices:
        flow, ties = self._problem.choices.flows[index], self._problem.choices.ties[index]
        return replace(flow, slow_us=priced(flow, ties, self.prices.slow_us)) if ties else flow


def certificate_of(prices: Prices, tables: Sequence[Table]) -> Certificate:
    """Return the certificate that states these prices; slow operands that cost nothing are left out."""
    slow = [
        (table.kernel, name, share)
        for table, shares in zip(tables, prices.slow_us, strict=True)
        for name, share in zip(table.operands, shares, strict=True)
        if share
    ]
    return Certificate(
        KernelPrices(*_sparse(prices.byte_us)),
        tuple(
            StatedCut(tuple(cut.weights), tuple(cut.weights.values()), *_sparse(each))
            for cut, each in prices.cut_us.items()
        ),
        StatedSlow(*map(tuple, zip(*slow, strict=True))),
        *(
            StatedSpans(*(tuple(each.tolist()) for each in (spans.starts, spans.ends, spans.price_us)))
            for spans in (prices.engines.out, prices.engines.back)
        ),
    )


def prices_without_engines(
    certificate: Certificate, tables: Sequence[Table], sizes_bytes: Mapping[str, int], limit_bytes: int, kernels: int
) -> Prices:
    """Return a certificate's prices of bytes, weights and slow operands, with free engines."""
    slow = certificate.slow
    slow_us = dict(zip(zip(slow.kernels, slow.tensors, strict=True), slow.prices_us, strict=True))
    cut_us = {
        Cut.of(dict(zip(each.tensors, each.weights, strict=True)), sizes_bytes, limit_bytes): _dense(each, kernels)
        for each in certificate.cuts
    }
    return Prices(
        _dense(certificate.fast, kernels),
        tuple(tuple(slow_us.get((table.kernel, name), 0.0) for name in table.operands) for table in tables),
        EnginePrices.none(),
        cut_us,
    )


def _sparse(prices: Floats) -> tuple[tuple[int, ...], tuple[float, ...]]:
    kernels = prices.nonzero()[0]
    return tuple(kernels.tolist()), tuple(prices[kernels].tolist())


def _dense(stated: KernelPrices | StatedCut, kernels: int) -> Floats:
    """Return the price for each kernel (kernels,)."""
    prices = np.zeros(kernels)
    prices[list(stated.kernels)] = stated.prices_us
    return prices
