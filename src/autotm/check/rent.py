"""What fast memory costs at a certificate's prices, by the byte and by the whole portion, in several cases at once.

Fast at one time are at most L bytes. So for any divisor d >= 1 they hold at most floor(L / d) times d bytes, and what
is fast, rounded down one by one, holds no more: sum of floor(S / d) <= floor(sum of S / d) <= floor(L / d). Relaxing
that at prices >= 0 keeps the bound valid, whatever the divisors are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.certificate import KernelPrices, PortionPrices, Prices

Floats = npt.NDArray[np.float64]


class Rent:
    """Prices of bytes and portions during each of `count` kernels, one set of prices a case.

    Raises:
        FaultError: a price is not finite and >= 0, a divisor not at least 1 or there twice, or the kernels are not
            those of a step.
    """

    def __init__(self, cases: Sequence[Prices], count: int) -> None:
        self._prices: dict[int, Floats] = {}
        for case, stated in enumerate(cases):
            divisors = [each.divisor_bytes for each in stated.fast]
            require(len(set(divisors)) == len(divisors), Fault.CERTIFICATE, f"divisors {divisors} are not distinct")
            for each in stated.fast:
                require(each.divisor_bytes >= 1, Fault.CERTIFICATE, f"portions of {each.divisor_bytes} bytes")
                prices = self._prices.setdefault(each.divisor_bytes, np.zeros((len(cases), count)))
                prices[case] = spread(each, count)
        self._until = {divisor: until(prices) for divisor, prices in self._prices.items()}
        self._none = np.zeros(len(cases))

    def whole_us(self, limit_bytes: int) -> Floats:
        """(cases,) Rent of all fast memory during the whole step."""
        shares = (prices.sum(axis=1) * (limit_bytes // divisor) for divisor, prices in self._prices.items())
        return sum(shares, self._none)

    def span_us(self, size_bytes: int, start: int, end: int) -> Floats:
        """(cases,) Rent of a tensor during kernels [start, end)."""
        spans = ((sums[:, end] - sums[:, start]) * (size_bytes // divisor) for divisor, sums in self._until.items())
        return sum(spans, self._none)

    def at_us(self, kernel: int, size_bytes: Floats) -> Floats:
        """(sizes, cases) Rent of so many bytes each (whole numbers) during one kernel."""
        total = np.zeros((len(size_bytes), len(self._none)))
        for divisor, prices in self._prices.items():
            total += (size_bytes // divisor)[:, None] * prices[:, kernel]
        return total


def until(prices: Floats) -> Floats:
    """(cases, kernels + 1) Sums of the prices of all kernels before each."""
    return np.concatenate((np.zeros((len(prices), 1)), np.cumsum(prices, axis=1)), axis=1)


def spread(stated: KernelPrices | PortionPrices, count: int) -> Floats:
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
