"""What the time of a copying engine costs at a certificate's prices, in several cases at once.

Moves that must be made within a span of kernels take an engine together no longer than these kernels take. Relaxing
such rows at prices >= 0, for any spans, keeps the bound valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotm.check.bound.holding import Floats
from autotm.check.fault import Fault, require
from autotm.model.plan import SpanPrices


class Spans:
    """Prices of spans of the `count` kernels of a step, one set of prices a case.

    Raises:
        FaultError: a price is not finite and >= 0, or a span not one of kernels of the step.
    """

    def __init__(self, cases: Sequence[SpanPrices], count: int) -> None:
        for stated in cases:
            _require_valid(stated, count)
        spans = sorted({span for stated in cases for span in zip(stated.starts, stated.ends, strict=True)})
        place = {span: n for n, span in enumerate(spans)}
        self._starts = np.array([start for start, _ in spans], np.int64)
        self._ends = np.array([end for _, end in spans], np.int64)
        self._price_us = np.zeros((len(cases), len(spans)))
        for case, stated in enumerate(cases):
            for span, price_us in zip(zip(stated.starts, stated.ends, strict=True), stated.prices_us, strict=True):
                self._price_us[case, place[span]] += price_us

    def whole_us(self, until_ns: npt.NDArray[np.int64]) -> Floats:
        """(cases,) Of all that the engine can do in the spans; kernels begin at `until_ns`."""
        total: Floats = self._price_us @ (until_ns[self._ends] - until_ns[self._starts])
        return total

    def around_us(self, start: int, end: int) -> Floats:
        """(cases,) Of a nanosecond of work that must be done within kernels [start, end)."""
        total: Floats = self._price_us[:, (self._starts <= start) & (self._ends >= end)].sum(axis=1)
        return total


def _require_valid(stated: SpanPrices, count: int) -> None:
    same = len(stated.starts) == len(stated.ends) == len(stated.prices_us)
    require(same, Fault.CERTIFICATE, "prices of spans without their first and last kernels")
    inside = all(0 <= start < end <= count for start, end in zip(stated.starts, stated.ends, strict=True))
    require(inside, Fault.CERTIFICATE, "a span with a price is not one of kernels of the step")
    prices_us = np.asarray(stated.prices_us, dtype=np.float64)
    valid = bool(np.isfinite(prices_us).all() and (prices_us >= 0).all())
    require(valid, Fault.CERTIFICATE, "the price of a span is not finite and >= 0")
