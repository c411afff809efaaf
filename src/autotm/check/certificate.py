"""Costs of fast memory and of copying engines at a certificate's prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.graph import CountedGraph
from autotm.model.plan import Certificate, Cut, KernelPrices, SpanPrices

# The cost of fast memory at a certificate's prices, by bytes and by weights.
#
# Fast at one time are at most L bytes. So whatever tensors weigh, those that are fast weigh together at most W(L),
# where W(x) is the most that tensors with weights weigh of which the bytes do not exceed x. A kernel's workspaces of
# B bytes that are fast too leave W(L - B) of that: they weigh W(L) - W(L - B). Relaxing such rows at prices >= 0
# keeps the bound valid, whatever the weights are.

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_WEIGHT = 10**6
"""The most weight of all tensors of a cut together; the memory to compute which weights fit grows with it."""


class PricedCut:
    """A cut of a certificate, with the most weight that fits into any number of bytes.

    Attributes:
        prices_us: (kernels,) of a unit of weight.
        until: (kernels + 1,) sums of the prices of all kernels before each.

    Raises:
        FaultError: its tensors are not distinct tensors that can move, its weights not whole numbers >= 1 for each of
            them, or more than a million together; or its prices are not fit for a bound.
    """

    def __init__(self, number: int, cut: Cut, movable: Mapping[str, int], count: int) -> None:
        known = set(cut.tensors) <= set(movable) and len(set(cut.tensors)) == len(cut.tensors)
        require(known, Fault.CERTIFICATE, f"the tensors of cut {number} are not distinct tensors that can move")
        whole = len(cut.weights) == len(cut.tensors) and all(weight >= 1 for weight in cut.weights)
        require(whole, Fault.CERTIFICATE, f"cut {number} has not one weight >= 1 a tensor")
        total = sum(cut.weights)
        require(total <= _MOST_WEIGHT, Fault.CERTIFICATE, f"cut {number} weighs {total}, more than {_MOST_WEIGHT}")
        # By weight, the fewest bytes of tensors that weigh exactly that; then that or more.
        exact = np.full(total + 1, np.iinfo(np.int64).max // 2, np.int64)
        exact[0] = 0
        for name, weight in zip(cut.tensors, cut.weights, strict=True):
            exact[weight:] = np.minimum(exact[weight:], exact[:-weight] + movable[name])
        self._least_bytes: Ints = np.minimum.accumulate(exact[::-1])[::-1]
        self.prices_us = spread(cut, count)
        self.until = until(self.prices_us)

    def most(self, capacity_bytes: int | Ints) -> Ints:
        """Return W(`capacity_bytes`): the most weight of tensors that fits so many bytes; 0 if no tensor fits."""
        most: Ints = np.searchsorted(self._least_bytes, np.maximum(capacity_bytes, 0), side="right") - 1
        return most


class HoldingCosts:
    """Prices of bytes and weights during each of `count` kernels.

    Raises:
        FaultError: a price is not finite and >= 0, the kernels are not those of a step, or a cut is malformed.
    """

    def __init__(self, certificate: Certificate, graph: CountedGraph, limit_bytes: int) -> None:
        count, movable = len(graph.kernels), {tensor.name: tensor.allocated_bytes for tensor in graph.movable}
        self._limit_bytes = limit_bytes
        self._byte_us = spread(certificate.fast, count)
        self._until = until(self._byte_us)
        self._cuts = [PricedCut(number, cut, movable, count) for number, cut in enumerate(certificate.cuts)]
        self._of: dict[str, list[tuple[PricedCut, int]]] = {}
        """By tensor, the cuts that give it a weight, each with this weight."""
        for stated, cut in zip(certificate.cuts, self._cuts, strict=True):
            for name, weight in zip(stated.tensors, stated.weights, strict=True):
                self._of.setdefault(name, []).append((cut, weight))

    @property
    def whole_us(self) -> float:
        """Holding cost of all fast memory during the whole step, and of all weight that fits."""
        total = float(self._byte_us.sum()) * self._limit_bytes
        return total + sum(float(cut.prices_us.sum()) * int(cut.most(self._limit_bytes)) for cut in self._cuts)

    def span_us(self, name: str, size_bytes: int, start: int, end: int) -> float:
        """Return the holding cost of a tensor during kernels [start, end)."""
        total = float(self._until[end] - self._until[start]) * size_bytes
        for cut, weight in self._of.get(name, ()):
            total += float(cut.until[end] - cut.until[start]) * weight
        return total

    def at_us(self, kernel: int, size_bytes: Floats) -> Floats:
        """Return the holding cost (sizes,) of workspaces of so many bytes each (whole numbers) during one kernel."""
        total: Floats = size_bytes * self._byte_us[kernel]
        for cut in self._cuts:
            if cut.prices_us[kernel]:
                left = cut.most(self._limit_bytes - size_bytes.astype(np.int64))
                total += (cut.most(self._limit_bytes) - left) * cut.prices_us[kernel]
        return total


def until(prices: Floats) -> Floats:
    """Return, by kernel and for the end, the sum of the prices of all kernels before it (kernels + 1,)."""
    return np.concatenate(([0.0], np.cumsum(prices)))


def spread(stated: KernelPrices | Cut, count: int) -> Floats:
    """Return the stated prices of kernels (kernels,); refuse those that prove no bound."""
    kernels = list(stated.kernels)
    distinct = kernels == sorted(set(kernels)) and all(0 <= kernel < count for kernel in kernels)
    require(distinct, Fault.CERTIFICATE, "kernels with prices are not distinct, ascending kernels of the step")
    total = len(stated.prices_us)
    require(total == len(kernels), Fault.CERTIFICATE, f"{total} prices for {len(kernels)} kernels")
    prices = np.zeros(count)
    prices[kernels] = _prices(stated.prices_us, "a price")
    return prices


def _prices(stated: Sequence[float], label: str) -> Floats:
    prices = np.asarray(stated, dtype=np.float64)
    valid = bool(np.isfinite(prices).all() and (prices >= 0).all())
    require(valid, Fault.CERTIFICATE, f"{label} is not finite and >= 0")
    return prices


# The cost of a copying engine's time at a certificate's prices.
#
# Moves that must be made within a span of kernels take an engine together no longer than these kernels take. Relaxing
# such rows at prices >= 0, for any spans, keeps the bound valid.


class Spans:
    """Prices of spans of the `count` kernels of a step.

    Raises:
        FaultError: a price is not finite and >= 0, or a span not one of kernels of the step.
    """

    def __init__(self, stated: SpanPrices, count: int) -> None:
        same = len(stated.starts) == len(stated.ends) == len(stated.prices_us)
        require(same, Fault.CERTIFICATE, "prices of spans without their first and last kernels")
        inside = all(0 <= start < end <= count for start, end in zip(stated.starts, stated.ends, strict=True))
        require(inside, Fault.CERTIFICATE, "a span with a price is not one of kernels of the step")
        self._starts, self._ends = np.array(stated.starts, np.int64), np.array(stated.ends, np.int64)
        self._price_us = _prices(stated.prices_us, "the price of a span")

    def whole_us(self, until_ns: Ints) -> float:
        """Return the price of all work that the engine can do in the spans; kernel i begins at `until_ns[i]`."""
        return float(self._price_us @ (until_ns[self._ends] - until_ns[self._starts]))

    def around_us(self, start: int, end: int) -> float:
        """Return the price of a nanosecond of work that must be done within kernels [start, end)."""
        return float(self._price_us[(self._starts <= start) & (self._ends >= end)].sum())
