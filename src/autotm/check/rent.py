"""What fast memory costs at a certificate's prices, by the byte and by the whole portion.

Fast at one time are at most L bytes. So for any divisor d >= 1 they hold at most floor(L / d) times d bytes, and what
is fast, rounded down one by one, holds no more: sum of floor(S / d) <= floor(sum of S / d) <= floor(L / d). Relaxing
that at prices >= 0 keeps the bound valid, whatever the divisors are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotm.check.fault import Fault, require
from autotm.model.plan import Certificate, RoundedPrices

Floats = npt.NDArray[np.float64]


class Rent:
    """Prices of bytes and portions during each of `count` kernels.

    Raises:
        FaultError: a price is not finite and >= 0, a divisor not at least 1, or the kernels are not those of a step.
    """

    def __init__(self, certificate: Certificate, count: int) -> None:
        self._prices = [(1, checked_prices(certificate.prices_us_per_byte, count))]
        self._prices += [(each.divisor_bytes, _spread(each, count)) for each in certificate.rounded]
        self._until = [(divisor, until(prices)) for divisor, prices in self._prices]

    def whole_us(self, limit_bytes: int) -> float:
        """Rent of all fast memory during the whole step."""
        return sum(float(prices.sum()) * (limit_bytes // divisor) for divisor, prices in self._prices)

    def span_us(self, size_bytes: int, start: int, end: int) -> float:
        """Rent of a tensor during kernels [start, end)."""
        return sum(float(sums[end] - sums[start]) * (size_bytes // divisor) for divisor, sums in self._until)

    def at_us(self, kernel: int, size_bytes: Floats) -> Floats:
        """Rent of so many bytes each (whole numbers) during one kernel."""
        total = np.zeros(len(size_bytes))
        for divisor, prices in self._prices:
            total += prices[kernel] * (size_bytes // divisor)
        return total


def checked_prices(stated: Sequence[float], count: int) -> Floats:
    """Prices of all kernels, if they are fit for a bound."""
    prices = np.asarray(stated, dtype=np.float64)
    require(len(prices) == count, Fault.CERTIFICATE, f"{len(prices)} prices for {count} kernels")
    valid = bool(np.isfinite(prices).all() and (prices >= 0).all())
    require(valid, Fault.CERTIFICATE, "a price is not finite and >= 0")
    return prices


def until(prices: Floats) -> Floats:
    """Sums of the prices of all kernels before each."""
    return np.concatenate(([0.0], np.cumsum(prices)))


def _spread(stated: RoundedPrices, count: int) -> Floats:
    require(stated.divisor_bytes >= 1, Fault.CERTIFICATE, f"portions of {stated.divisor_bytes} bytes")
    kernels = list(stated.kernels)
    distinct = kernels == sorted(set(kernels)) and all(0 <= kernel < count for kernel in kernels)
    require(distinct, Fault.CERTIFICATE, f"portions of {stated.divisor_bytes} bytes: kernels not distinct, ascending")
    prices = np.zeros(count)
    prices[kernels] = checked_prices(stated.prices_us, len(kernels))
    return prices
