"""What fast memory costs at a certificate's prices, by bytes and by weights, in several cases at once.

Fast at one time are at most L bytes. So whatever tensors weigh, those that are fast weigh together at most W(L), where
W(x) is the most that tensors with weights weigh of which the bytes do not exceed x. A kernel's workspaces of B bytes
that are fast too leave W(L - B) of that: they weigh W(L) - W(L - B). Relaxing such rows at prices >= 0 keeps the bound
valid, whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.plan import Certificate, Cut, CutPrices, KernelPrices, Prices
from autotm.model.step import Graph

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_WEIGHT = 10**6
"""Of all tensors of a cut together; the memory to find what fits goes with it."""


class Weights:
    """The cuts of a certificate.

    Raises:
        FaultError: tensors of a cut are not distinct tensors that can move, weights not whole numbers >= 1 for each of
            them, or more than a million together.
    """

    def __init__(self, certificate: Certificate, graph: Graph, limit_bytes: int) -> None:
        movable = {tensor.name: tensor.allocated_bytes for tensor in graph.movable}
        self.limit_bytes = limit_bytes
        self.of: dict[str, list[tuple[int, int]]] = {}
        """By tensor, the cuts that give it a weight, with it."""
        self._least_bytes = []
        for number, cut in enumerate(certificate.cuts):
            _require_valid(number, cut, movable)
            for name, weight in zip(cut.tensors, cut.weights, strict=True):
                self.of.setdefault(name, []).append((number, weight))
            self._least_bytes.append(_least_bytes([movable[name] for name in cut.tensors], cut.weights))

    def __len__(self) -> int:
        return len(self._least_bytes)

    def most(self, cut: int, room_bytes: Ints) -> Ints:
        """W: the most that fits so many bytes, 0 where that is none."""
        found: Ints = np.searchsorted(self._least_bytes[cut], np.maximum(room_bytes, 0), side="right") - 1
        return found


def _require_valid(number: int, cut: Cut, movable: dict[str, int]) -> None:
    known = set(cut.tensors) <= set(movable) and len(set(cut.tensors)) == len(cut.tensors)
    require(known, Fault.CERTIFICATE, f"the tensors of cut {number} are not distinct tensors that can move")
    whole = len(cut.weights) == len(cut.tensors) and all(weight >= 1 for weight in cut.weights)
    require(whole, Fault.CERTIFICATE, f"cut {number} has not one weight >= 1 a tensor")
    total = sum(cut.weights)
    require(total <= _MOST_WEIGHT, Fault.CERTIFICATE, f"cut {number} weighs {total}, more than {_MOST_WEIGHT}")


def _least_bytes(sizes_bytes: Sequence[int], weights: Sequence[int]) -> Ints:
    """By weight, the fewest bytes of tensors that weigh as much or more."""
    exact = np.full(sum(weights) + 1, np.iinfo(np.int64).max // 2, np.int64)
    exact[0] = 0
    for size_bytes, weight in zip(sizes_bytes, weights, strict=True):
        exact[weight:] = np.minimum(exact[weight:], exact[:-weight] + size_bytes)
    least: Ints = np.minimum.accumulate(exact[::-1])[::-1]
    return least


class HoldingCosts:
    """Prices of bytes and weights during each of `count` kernels, one set of prices a case.

    Raises:
        FaultError: a price is not finite and >= 0, a cut not there or priced twice, or the kernels are not those of a
            step.
    """

    def __init__(self, weights: Weights, cases: Sequence[Prices], count: int) -> None:
        self._weights = weights
        self._bytes = np.array([spread(stated.fast, count) for stated in cases])
        self._cuts: dict[int, Floats] = {}
        for case, stated in enumerate(cases):
            numbers = [each.cut for each in stated.cuts]
            known = len(set(numbers)) == len(numbers) and all(0 <= number < len(weights) for number in numbers)
            require(
                known, Fault.CERTIFICATE, f"prices of cuts {numbers}, which are not distinct cuts of {len(weights)}"
            )
            for each in stated.cuts:
                self._cuts.setdefault(each.cut, np.zeros((len(cases), count)))[case] = spread(each, count)
        self._until = until(self._bytes)
        self._cuts_until = {cut: until(prices) for cut, prices in self._cuts.items()}

    def whole_us(self, limit_bytes: int) -> Floats:
        """(cases,) Holding cost of all fast memory during the whole step, and of all weight that fits."""
        total: Floats = self._bytes.sum(axis=1) * limit_bytes
        for cut, prices in self._cuts.items():
            total += prices.sum(axis=1) * int(self._weights.most(cut, np.array(limit_bytes)))
        return total

    def span_us(self, name: str, size_bytes: int, start: int, end: int) -> Floats:
        """(cases,) Holding cost of a tensor during kernels [start, end)."""
        total: Floats = (self._until[:, end] - self._until[:, start]) * size_bytes
        for cut, weight in self._weights.of.get(name, ()):
            if cut in self._cuts_until:
                sums = self._cuts_until[cut]
                total += (sums[:, end] - sums[:, start]) * weight
        return total

    def at_us(self, kernel: int, size_bytes: Floats) -> Floats:
        """(sizes, cases) Holding cost of workspaces of so many bytes each (whole numbers) during one kernel."""
        total: Floats = size_bytes[:, None] * self._bytes[:, kernel]
        limit_bytes = self._weights.limit_bytes
        for cut, prices in self._cuts.items():
            if prices[:, kernel].any():
                left = self._weights.most(cut, limit_bytes - size_bytes.astype(np.int64))
                taken = self._weights.most(cut, np.array(limit_bytes)) - left
                total += taken[:, None] * prices[:, kernel]
        return total


def until(prices: Floats) -> Floats:
    """(cases, kernels + 1) Sums of the prices of all kernels before each."""
    return np.concatenate((np.zeros((len(prices), 1)), np.cumsum(prices, axis=1)), axis=1)


def spread(stated: KernelPrices | CutPrices, count: int) -> Floats:
    """(kernels,) Stated prices, if they are fit for a bound."""
    kernels = list(stated.kernels)
    distinct = kernels == sorted(set(kernels)) and all(0 <= kernel < count for kernel in kernels)
    require(distinct, Fault.CERTIFICATE, "kernels with prices are not distinct, ascending kernels of the step")
    found = np.asarray(stated.prices_us, dtype=np.float64)
    require(len(found) == len(kernels), Fault.CERTIFICATE, f"{len(found)} prices for {len(kernels)} kernels")
    valid = bool(np.isfinite(found).all() and (found >= 0).all())
    require(valid, Fault.CERTIFICATE, "a price is not finite and >= 0")
    prices = np.zeros(count)
    prices[kernels] = found
    return prices
