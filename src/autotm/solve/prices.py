"""Prices of memory, knapsack inequalities and copying engines: what they charge, how certificates state them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotm.model.certificate import Certificate, CutPrices, KernelPrices, Leaf, Split
from autotm.model.certificate import Cut as StatedCut
from autotm.model.certificate import Prices as Stated
from autotm.model.certificate import SlowPrices as StatedSlow
from autotm.model.certificate import SpanPrices as StatedSpans
from autotm.solve.choices import Flow, Window
from autotm.solve.problem import Floats, Ints, Table
from autotm.solve.residencies import Charges, PricedCopy

# What fits a limit of items with weights: the value function of a knapsack, by dynamic programming over weights.


class Fitting:
    """The most that items weigh together which fit so many bytes; items are added one by one.

    Weights are whole numbers >= 1. Time and memory go with the most that fits the limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._least_bytes: Ints = np.zeros(1, np.int64)
        """By weight, the fewest bytes of items that weigh as much or more."""

    def add(self, weight: int, size_bytes: int) -> None:
        """One item more."""
        before = self._least_bytes
        with_it = np.concatenate((np.zeros(weight, np.int64), before)) + size_bytes
        with_it[0] = 0
        with_it[: len(before)] = np.minimum(with_it[: len(before)], before)
        self._least_bytes = with_it[: int(np.searchsorted(with_it, self._limit_bytes, side="right"))]

    def most(self, room_bytes: int) -> int:
        """The most that fits so many bytes, at most those of the limit."""
        return int(np.searchsorted(self._least_bytes, room_bytes, side="right")) - 1

    def most_in_each(self, rooms_bytes: Ints) -> Ints:
        """The same for many rooms; 0 where there is none."""
        found: Ints = np.searchsorted(self._least_bytes, np.maximum(rooms_bytes, 0), side="right") - 1
        return found


# A knapsack inequality: weights of tensors, and what fits of them.


@dataclass(frozen=True, eq=False)
class Cut:
    """Weights of tensors: what is fast at one time weighs at most what fits the limit.

    Attributes:
        number: its place among the cuts of a search.
        weights: by tensor, those that have any.
        limit_bytes: the limit.
        fitting: what fits of them.
    """

    number: int
    weights: Mapping[str, int]
    limit_bytes: int
    fitting: Fitting

    @classmethod
    def of(cls, number: int, weights: Mapping[str, int], sizes_bytes: Mapping[str, int], limit_bytes: int) -> Cut:
        """With what fits, from the tensors' sizes."""
        fitting = Fitting(limit_bytes)
        for tensor, weight in weights.items():
            fitting.add(weight, sizes_bytes[tensor])
        return cls(number, weights, limit_bytes, fitting)

    @property
    def most(self) -> int:
        """What fits the limit."""
        return self.fitting.most(self.limit_bytes)

    def of_workspaces(self, fast_bytes: Ints) -> Ints:
        """What workspaces of so many bytes weigh: what no longer fits beside them."""
        found: Ints = self.most - self.fitting.most_in_each(self.limit_bytes - fast_bytes)
        return found


# What the time of copying engines costs: prices of spans of kernels, which a move pays if it must lie within them.


@dataclass(frozen=True)
class SpanPrices:
    """Prices of one engine's time.

    Attributes:
        starts, ends: span j has kernels [starts[j], ends[j]).
        lasts_ns: what an engine can work in each.
        price_us: of a nanosecond of work that cannot be done outside of the span; none below 0.
    """

    starts: Ints
    ends: Ints
    lasts_ns: Ints
    price_us: Floats

    @classmethod
    def none(cls) -> SpanPrices:
        """No span has a price."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, np.zeros(0))

    @property
    def whole_us(self) -> float:
        """Of all the work that can be done in the spans."""
        return float(self.lasts_ns @ self.price_us)

    def of_us(self, window: Window) -> float:
        """Of a move that has to be done in a window."""
        return float(self.price_us[self.around(window)].sum()) * window.work_ns

    def around(self, window: Window) -> npt.NDArray[np.bool_]:
        """(spans,) Those that a window lies within."""
        return (self.starts <= window.start) & (self.ends >= window.end)

    def unused_us(self, windows: Collection[Window]) -> Floats:
        """(spans,) Price of the time that moves in these windows leave."""
        work_ns = sum((self.around(window) * window.work_ns for window in windows), np.zeros(len(self.starts)))
        return (self.lasts_ns - work_ns) * self.price_us


@dataclass(frozen=True)
class EnginePrices:
    """Prices of both engines, for copies to slow and to fast memory."""

    out: SpanPrices
    back: SpanPrices

    @classmethod
    def none(cls) -> EnginePrices:
        """Engines for nothing."""
        return cls(SpanPrices.none(), SpanPrices.none())


# What prices charge: the Lagrangian relaxation of capacity, knapsack, marginal and engine rows, term by term.

SlowPrices = tuple[tuple[float, ...], ...]
"""Per table and operand, what the tensor pays the kernel for being slow."""


@dataclass(frozen=True)
class Prices:
    """What a relaxation charges.

    Attributes:
        byte_us: for a byte of fast memory during each kernel; none below 0.
        slow_us: per table and operand.
        engines: for the time of the copying engines.
        cut_us: for a unit of weight by a cut during each kernel; none below 0.
    """

    byte_us: Floats
    slow_us: SlowPrices
    engines: EnginePrices
    cut_us: Mapping[Cut, Floats] = field(default_factory=dict)

    def holding_us(self, limit_bytes: int) -> float:
        """Of all that the step has of what is charged."""
        total = float(self.byte_us.sum()) * limit_bytes
        total += sum(float(each.sum()) * cut.most for cut, each in self.cut_us.items())
        return total + self.engines.out.whole_us + self.engines.back.whole_us

    @cached_property
    def weighed_us(self) -> Mapping[str, Floats]:
        """(kernels + 1,) By tensor that has weights, what it pays for them in the kernels before each."""
        found: dict[str, Floats] = defaultdict(lambda: np.zeros(len(self.byte_us) + 1))
        for cut, each in self.cut_us.items():
            kernels = each.nonzero()[0]
            for tensor, weight in cut.weights.items():
                found[tensor][kernels + 1] += weight * each[kernels]
        return {tensor: np.cumsum(paid) for tensor, paid in found.items()}

    @cached_property
    def cuts_at(self) -> Mapping[int, Sequence[tuple[Cut, float]]]:
        """By kernel, the cuts that have a price there."""
        found: dict[int, list[tuple[Cut, float]]] = defaultdict(list)
        for cut, each in self.cut_us.items():
            for kernel in each.nonzero()[0].tolist():
                found[kernel].append((cut, float(each[kernel])))
        return found


class HoldingCosts:
    """Prices summed over kernels, so that what a span of them costs is a difference."""

    def __init__(self, prices: Prices, limit_bytes: int) -> None:
        self._prices = prices
        self._byte_us = _until(prices.byte_us)
        self._engines = prices.engines
        self._weighed_us = prices.weighed_us
        self._limit_bytes = limit_bytes

    def charges(self, flow: Flow, beside_only: Collection[tuple[int, bool]] = ()) -> Charges:
        """What the flow is charged; copies over the gaps `beside_only` (gap, to slow memory) cannot be blocking."""
        gaps = range(len(flow) - 1)
        write_us = [math.inf if (k, True) in beside_only else flow.write_us for k in gaps]
        read_us = [math.inf if (k, False) in beside_only else flow.read_us for k in gaps]
        return Charges(
            slow_us=flow.slow_us,
            fast_us=[self.memory_us(flow, start, stop) for start, stop in zip(flow.starts, flow.stops, strict=True)],
            between_us=[self.memory_us(flow, *flow.gap(k)) for k in gaps],
            out=[self._cheapest(flow, flow.out[k], write_us[k], self._engines.out) for k in gaps],
            back=[self._cheapest(flow, flow.back[k], read_us[k], self._engines.back) for k in gaps],
        )

    def _window_us(self, flow: Flow, window: Window, engine: SpanPrices) -> float:
        """Holding cost of memory and engine over a window."""
        return self.memory_us(flow, window.start, window.end) + engine.of_us(window)

    def during_us(self, kernel: int, size_bytes: Ints) -> Floats:
        """(sizes,) Holding cost of so many bytes each during one kernel."""
        total: Floats = self._prices.byte_us[kernel] * size_bytes
        for cut, price_us in self._prices.cuts_at.get(kernel, ()):
            total = total + price_us * cut.of_workspaces(size_bytes)
        return total

    def window_us(self, flow: Flow, window: Window, *, is_out: bool) -> float:
        """Holding cost of memory and engine over a window."""
        return self._window_us(flow, window, self._engines.out if is_out else self._engines.back)

    def _cheapest(self, flow: Flow, windows: Sequence[Window], blocking_us: float, engine: SpanPrices) -> PricedCopy:
        ways: list[PricedCopy] = [(blocking_us, None)]
        ways += [(window.added_us + self._window_us(flow, window, engine), window) for window in windows]
        return min(ways, key=lambda way: way[0])

    def memory_us(self, flow: Flow, start: int, end: int) -> float:
        """Holding cost of fast memory during kernels [start, end)."""
        if end <= start:
            return 0.0
        if flow.size_bytes > self._limit_bytes:
            return math.inf
        total = float(self._byte_us[end] - self._byte_us[start]) * flow.size_bytes
        until_us = self._weighed_us.get(flow.tensor)
        return total if until_us is None else total + float(until_us[end] - until_us[start])


def _until(prices_us: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(prices_us)))


def cheapest_entry_us(
    table: Table, shares: tuple[float, ...], holding_us: Floats, most_bytes: int, more_than_bytes: int = -1
) -> float:
    """A table's cheapest entry when operand o pays it `shares[o]` for being slow, and entry e pays `holding_us[e]`.

    Its fast bytes are more than `more_than_bytes` and at most `most_bytes`; infinite where no entry's are.
    """
    slow = table.slow[:, None] >> np.arange(len(shares)) & 1
    cost_us = table.time_us + holding_us - slow @ np.array(shares)
    allowed = (table.fast_bytes > more_than_bytes) & (table.fast_bytes <= most_bytes)
    return float(cost_us[allowed].min(initial=math.inf))


# Prices as a certificate states them, sparse, and back.

CutUs = Mapping[Cut, Floats]

_SAME = 1e-9
"""Relative difference below which a slow operand's price is that of the first set: what is left of rounding."""


def state(prices: Prices, tables: Sequence[Table], first: Prices | None = None) -> Stated:
    """The certificate's set of these prices; slow operands are left out where they cost what they do in `first`."""
    cuts = tuple(CutPrices(cut.number, *_sparse(each)) for cut, each in prices.cut_us.items())
    known = first.slow_us if first else tuple((0.0,) * len(shares) for shares in prices.slow_us)
    told = list(_differences(tables, prices.slow_us, known))
    slow = StatedSlow(*(tuple(column) for column in zip(*told, strict=True))) if told else StatedSlow()
    out, back = (_spans(each) for each in (prices.engines.out, prices.engines.back))
    return Stated(KernelPrices(*_sparse(prices.byte_us)), cuts, slow, out, back)


def certificate_of(sets: Sequence[Stated], tree: Sequence[Split | Leaf], found: Sequence[Cut]) -> Certificate:
    """A certificate of price sets that number the cuts as they were found; it has those that are priced."""
    used = sorted({each.cut for stated in sets for each in stated.cuts})
    place = {number: n for n, number in enumerate(used)}
    prices = tuple(
        replace(stated, cuts=tuple(replace(each, cut=place[each.cut]) for each in stated.cuts)) for stated in sets
    )
    cuts = (found[number].weights for number in used)
    return Certificate(prices, tuple(tree), tuple(StatedCut(tuple(each), tuple(each.values())) for each in cuts))


def like(first: Prices, prices: Prices) -> Prices:
    """The same prices, those of slow operands that differ from the first set by rounding only set to theirs."""
    slow_us = tuple(
        tuple(old if abs(new - old) <= _SAME * abs(old) else new for new, old in zip(news, olds, strict=True))
        for news, olds in zip(prices.slow_us, first.slow_us, strict=True)
    )
    return replace(prices, slow_us=slow_us)


def byte_prices(stated: Stated, kernels: int) -> Floats:
    """(kernels,) Price of a byte."""
    prices = np.zeros(kernels)
    prices[list(stated.fast.kernels)] = stated.fast.prices_us
    return prices


def cut_prices(certificate: Certificate, sizes_bytes: Mapping[str, int], limit_bytes: int, kernels: int) -> CutUs:
    """What a certificate's first set charges by its cuts."""
    found = {}
    for each in certificate.prices[0].cuts:
        stated = certificate.cuts[each.cut]
        weights = dict(zip(stated.tensors, stated.weights, strict=True))
        prices = np.zeros(kernels)
        prices[list(each.kernels)] = each.prices_us
        found[Cut.of(each.cut, weights, sizes_bytes, limit_bytes)] = prices
    return found


def slow_prices(stated: Stated, tables: Sequence[Table]) -> SlowPrices:
    """Per table and operand, what a certificate's first set says."""
    keys = zip(stated.slow.kernels, stated.slow.tensors, strict=True)
    told = dict(zip(keys, stated.slow.prices_us, strict=True))
    return tuple(tuple(told.get((table.kernel, name), 0.0) for name in table.operands) for table in tables)


def _sparse(prices: Floats) -> tuple[tuple[int, ...], tuple[float, ...]]:
    kernels = prices.nonzero()[0]
    return tuple(kernels.tolist()), tuple(prices[kernels].tolist())


def _spans(prices: SpanPrices) -> StatedSpans:
    return StatedSpans(*(tuple(each.tolist()) for each in (prices.starts, prices.ends, prices.price_us)))


def _differences(tables: Sequence[Table], slow_us: SlowPrices, known: SlowPrices) -> Iterator[tuple[int, str, float]]:
    for table, shares, before in zip(tables, slow_us, known, strict=True):
        for name, share, old in zip(table.operands, shares, before, strict=True):
            if share != old:
                yield table.kernel, name, share
