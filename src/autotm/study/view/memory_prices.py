"""What a byte of fast memory is worth during each kernel, by the certificate of a plan."""

from __future__ import annotations

from itertools import accumulate

from autotm.model.plan import Plan

BYTES_PER_MB = 1e6


class MemoryPrices:
    """Lagrange multipliers of the limit, from the certificate's first set of prices (docs/formulation.md, section 5).

    Args:
        plan: whose certificate is read; without one nothing has a price.
        kernels: how many kernels its step has.
    """

    def __init__(self, plan: Plan, kernels: int) -> None:
        self.us_per_mb = [0.0] * kernels
        self.are_known = plan.certificate is not None
        if plan.certificate is not None:
            stated = plan.certificate.prices[0].fast
            for kernel, price_us in zip(stated.kernels, stated.prices_us, strict=True):
                self.us_per_mb[kernel] += price_us * BYTES_PER_MB
        self._until = [0.0, *accumulate(self.us_per_mb)]

    def held_us(self, size_bytes: int, start: int, end: int) -> float:
        """Holding cost in microseconds of `size_bytes` of fast memory during kernels [start, end)."""
        return size_bytes / BYTES_PER_MB * (self._until[end] - self._until[start])

    @property
    def total_us_per_mb(self) -> float:
        """What the best step would be shorter by with 1 MB more, as far as prices hold."""
        return self._until[-1]
